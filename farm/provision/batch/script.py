"""The script of a job of workers, from a template that a site may edit."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from farm.provision.batch.kinds import DEFAULT_TEMPLATE, WorkerKind
from farm.settings import SettingsError

PLACEHOLDER = re.compile(r"@([a-z]+)@")


def job_script(
    kind: WorkerKind,
    *,
    job_name: str,
    connect: Path,
    output: Path,
    folder: Path,
) -> str:
    """Return the script for sbatch. All values are quoted; paths are made absolute.

    connect: the connection file; output: folder for the jobs' output; folder: their working
    directory. Raises SettingsError if the template cannot be read or has an unknown word between @
    signs.
    """
    template = Path(kind.template) if kind.template else DEFAULT_TEMPLATE
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"template {template} cannot be read: {error}") from None
    options = _sbatch(kind, job_name, output.absolute(), folder.absolute())
    values = {
        "sbatch": "\n".join(f"#SBATCH {option}" for option in options),
        "setup": "\n".join(kind.setup),
        "srun": _quoted(_srun(kind)),
        "farm": _quoted(_farm(kind, connect.absolute())),
        "kind": shlex.quote(kind.name),
    }
    code = "\n".join(line for line in text.splitlines() if not line.startswith("# "))
    unknown = set(PLACEHOLDER.findall(code)) - set(values)
    if unknown:
        raise SettingsError(
            f"template {template} has @{unknown.pop()}@; expected: "
            + ", ".join(f"@{name}@" for name in values)
        )
    for name in ("sbatch", "farm"):
        if f"@{name}@" not in code:
            raise SettingsError(f"template {template} lacks @{name}@")
    lines = [
        line if line.startswith("# ") else PLACEHOLDER.sub(lambda m: values[m[1]], line)
        for line in text.splitlines()
    ]
    return "\n".join(lines) + "\n"


def _sbatch(kind: WorkerKind, job_name: str, output: Path, folder: Path) -> list[str]:
    """Return the options of sbatch, one per line, quoted for sbatch."""
    tasks = kind.workers * kind.ranks if kind.ranks else kind.nodes
    options = {
        "job-name": job_name,
        "output": f"{output}/%j.out",
        "open-mode": "append",
        "chdir": str(folder),
        "partition": kind.partition,
        "account": kind.account,
        "qos": kind.qos,
        "constraint": kind.constraint,
        "time": kind.time,
        "nodes": str(kind.nodes),
        "ntasks": str(tasks),
        "ntasks-per-node": "" if kind.ranks else "1",
        "cpus-per-task": str(_cpus_per_task(kind)),
        "mem": kind.mem,
        "gres": f"gpu:{kind.gpus}" if kind.gpus else "",
        "signal": f"TERM@{kind.warning_s}",
    }
    lines = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
    return [*lines, "--requeue", *kind.sbatch]


def _cpus_per_task(kind: WorkerKind) -> int:
    """Return the CPUs per task, which is a rank, or the supervisor of a node's model processes."""
    return kind.cpus if kind.ranks else kind.cpus * kind.workers_per_node


def _srun(kind: WorkerKind) -> list[str]:
    # From SLURM 22.05 on srun does not inherit --cpus-per-task from the job.
    options = [f"--cpus-per-task={_cpus_per_task(kind)}"]
    if kind.ranks:
        options.append("--kill-on-bad-exit=1")  # otherwise ranks wait for ever for one that died
    return [*options, *kind.srun]


def _farm(kind: WorkerKind, connect: Path) -> list[str]:
    # -P: keep a user's file with the name of one of farm's modules from replacing it.
    words = [sys.executable, "-P", "-m", "farm", "worker", "--connect", str(connect)]
    if kind.ranks:
        words += ["--mpi", str(kind.ranks)]
    else:
        words += ["-n", str(kind.workers), "--cpus", str(kind.cpus)]
        words += ["--gpus", "auto"] * bool(kind.gpus)
    if kind.call_limit_s is not None:
        words += ["--time-limit", f"{kind.call_limit_s:g}"]
    return [*words, "--", *kind.models]


def _quoted(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
