"""A SLURM of four shell scripts, for tests that need no real one.

sbatch runs the script at once, in a process group of its own, and tells it when it ends, as
newer releases of SLURM do; squeue lists all jobs; scontrol shows one; scancel signals them. A file
`NAME.fails` beside them makes the command NAME fail with its text.
"""

from __future__ import annotations

from pathlib import Path

FAILS = """
here=$(dirname "$0")
if [ -e "$0.fails" ]; then cat "$0.fails" >&2; exit 1; fi
"""

SBATCH = """
mkdir -p "$here/jobs"
id=1
until mkdir "$here/jobs/$id.id" 2> /dev/null; do id=$(( id + 1 )); done  # no other job's
cat > "$here/jobs/$id.id/script"
sed -n 's/^#SBATCH --job-name=//p' "$here/jobs/$id.id/script" > "$here/jobs/$id.name"
output=$(sed -n 's/^#SBATCH --output=//p' "$here/jobs/$id.id/script" | sed "s/%j/$id/")
echo PENDING > "$here/jobs/$id.state"
mv "$here/jobs/$id.id/script" "$here/jobs/$id.script"  # whole, and now listed
SLURM_JOB_ID=$id SLURM_JOB_END_TIME=$(($(date +%s) + 3600)) setsid sh -c '
    trap "" TERM  # the workers, which heed it, are to end, and this to say so
    echo RUNNING > "$0.state"; echo $$ > "$0.pid"
    bash "$0.script" && echo COMPLETED > "$0.state" || echo FAILED > "$0.state"
' "$here/jobs/$id" > "$output" 2>&1 < /dev/null &
echo $id
"""

SQUEUE = """
echo "farm|JOBID|STATE|NODELIST|NAME|REASON|START_TIME|end"
for script in "$here"/jobs/*.script; do
    [ -e "$script" ] || exit 0
    job="${script%.script}"
    echo "farm|$(basename "$job")|$(cat "$job.state")|here|$(cat "$job.name")|None|N/A|end"
done
"""

SCONTROL = """
for id; do :; done
job="$here/jobs/$id"
if [ ! -e "$job.script" ] || [ -e "$job.purged" ]; then
    echo "slurm_load_jobs error: Invalid job id specified" >&2
    exit 1
fi
echo "JobId=$id JobName=$(cat "$job.name") UserId=me($(id -u)) JobState=$(cat "$job.state")" \
    "Reason=None ReqNodeList=(null) NodeList=here"
"""

SCANCEL = """
for word in "$@"; do
    case "$word" in
        --signal=*) drain=yes ;;
        --name=*)
            for name in "$here"/jobs/*.name; do
                [ "$(cat "$name")" = "${word#--name=}" ] && "$0" "$(basename "$name" .name)"
            done ;;
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
    texts = {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "scontrol": SCONTROL}
    for name, text in {**texts, "srun": SRUN}.items():
        (folder / name).write_text(f"#!/bin/sh\n{FAILS}{text}")
        (folder / name).chmod(0o755)
    return folder
