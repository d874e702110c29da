"""A SLURM of three shell scripts, for tests that need no real one.

sbatch runs the script at once, in a process group of its own; squeue lists all jobs; scancel
signals them. A file `NAME.fails` beside them makes the command NAME fail with its text.
"""

from __future__ import annotations

from pathlib import Path

FAILS = 'here=$(dirname "$0")\nif [ -e "$0.fails" ]; then cat "$0.fails" >&2; exit 1; fi\n'

SBATCH = """
mkdir -p "$here/jobs"
id=$(( $(ls "$here/jobs" | grep -c script) + 1 ))
cat > "$here/jobs/$id.script"
sed -n 's/^#SBATCH --job-name=//p' "$here/jobs/$id.script" > "$here/jobs/$id.name"
output=$(sed -n 's/^#SBATCH --output=//p' "$here/jobs/$id.script" | sed "s/%j/$id/")
echo PENDING > "$here/jobs/$id.state"
SLURM_JOB_ID=$id setsid sh -c '
    trap "" TERM  # the workers, which heed it, are to end, and this to say so
    echo RUNNING > "$0.state"; echo $$ > "$0.pid"
    bash "$0.script" && echo COMPLETED > "$0.state" || echo FAILED > "$0.state"
' "$here/jobs/$id" > "$output" 2>&1 < /dev/null &
echo $id
"""

SQUEUE = """
case "$*" in *%L*'|'*) ;; *) echo 1:00:00; exit;; esac
for script in "$here"/jobs/*.script; do
    [ -e "$script" ] || exit 0
    job="${script%.script}"
    echo "$(basename "$job")|$(cat "$job.state")|here|1:00:00|$(cat "$job.name")|None"
done
"""

SCANCEL = """
for word in "$@"; do
    case "$word" in
        --signal=*) drain=yes ;;
        --*) ;;
        *) kill -TERM "-$(cat "$here/jobs/$word.pid")"
           [ "$drain" ] && continue
           echo CANCELLED > "$here/jobs/$word.state"
           kill -KILL "-$(cat "$here/jobs/$word.pid")" ;;
    esac
done
exit 0
"""

SRUN = 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'


def install(folder: Path) -> Path:
    """Put the commands into a folder, which the caller puts first in the PATH."""
    folder.mkdir()
    texts = {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "scontrol": "exit 1"}
    for name, text in {**texts, "srun": SRUN}.items():
        (folder / name).write_text(f"#!/bin/sh\n{FAILS}{text}")
        (folder / name).chmod(0o755)
    return folder
