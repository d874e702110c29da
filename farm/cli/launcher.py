"""`farm launcher`: write the script that runs a farm in one SLURM job."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from farm.provision.batch.systems import SLURM

LAUNCHER = Path(__file__).with_name("farm.sh")

UNSET = "\nprogram=''\n"
"""The line of the launcher that names the program `farm`."""

EXAMPLES = """\b
Examples:
  farm launcher > farm.sh                     then: sbatch -N 4 -n 64 farm.sh beam.py
  farm launcher --path                        the path of such a file, for use inside a command:
  sbatch -N 4 -n 64 $(farm launcher --path) beam.py -- farm sweep --param load=1:2 -o s.h5
  farm launcher --check sbatch -N 4 -n 64 farm.sh --cpus 4 beam.py
"""


@click.command(epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("line", nargs=-1, metavar="[LINE]...")
@click.option(
    "--path",
    "as_path",
    is_flag=True,
    help="Write the script into a file in ~/.cache/farm, and print its path.",
)
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Submit nothing: print which workers the job of this sbatch LINE would get, or an error "
    "if SLURM or the script would refuse it.",
)
def launcher(line: tuple[str, ...], as_path: bool, checks: bool) -> int:
    """Print the script for sbatch that runs a farm in one SLURM job.

    The script runs the farm of this environment, which must be in a folder that all nodes see;
    the environment need not be active. `bash farm.sh --help` explains its options.
    """
    if checks:
        return check(line)
    if line:
        raise click.UsageError(f"unexpected words: {shlex.join(line)}; only --check takes a LINE")
    text = script(_program())
    click.echo(kept(text) if as_path else text, nl=as_path)
    return 0


def script(program: Path) -> str:
    """Return the launcher for a program `farm`."""
    text = LAUNCHER.read_text(encoding="utf-8")
    return text.replace(UNSET, f"\nprogram={shlex.quote(str(program))}\n", 1)


def kept(text: str) -> Path:
    """Write the launcher into the user's cache folder; return its path.

    The name depends on the contents: those of another environment, or of a newer farm, do not
    replace it between the call of `farm launcher` and that of sbatch. Raises UsageError.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farm"
    path = folder / f"farm-{hashlib.sha256(text.encode()).hexdigest()[:12]}.sh"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise click.UsageError(
            f"--path cannot write into {folder}: {error.strerror}; set XDG_CACHE_HOME to another "
            "folder, or use: farm launcher > farm.sh"
        ) from None
    return path


def _program() -> Path:
    for path in _places():
        with contextlib.suppress(OSError):
            if os.access(path, os.X_OK):
                return Path(os.path.abspath(path))
    raise click.UsageError(
        f"no program `farm` belongs to {sys.executable}; expected it in its folder, where "
        "`pip install` puts it"
    )


def _places() -> Iterator[Path]:
    """Where the program can be: as it was called, then beside Python, then of the user."""
    if Path(sys.argv[0]).name == "farm":
        yield Path(sys.argv[0])
    yield Path(sys.executable).with_name("farm")
    yield Path(sysconfig.get_path("scripts"), "farm")
    yield Path(sysconfig.get_path("scripts", "posix_user"), "farm")


ASK_TIMEOUT_S = 60.0
"""While slurmctld is away sbatch blocks for some ten seconds."""

SIZE = re.compile(r"using (\d+) processors on (?:nodes )?(\S+)")
"""In the answer of `sbatch --test-only`: CPUs of a job, and its nodes."""

OPTIONS = {
    "ntasks": re.compile(r"--ntasks(?:=|\0)(\d+)|-n\0?(\d+)"),
    "cpus": re.compile(r"--cpus-per-task(?:=|\0)(\d+)|-c\0?(\d+)"),
    "ntasks_per_node": re.compile(r"--ntasks-per-node(?:=|\0)(\d+)"),
}


def check(line: Sequence[str]) -> int:
    """Print which workers the job of an sbatch line would get, or why it never runs.

    Returns an exit status. Raises UsageError, ClickException.
    """
    position = next((i for i, word in enumerate(line) if _is_launcher(word)), None)
    if not line or Path(line[0]).name != "sbatch" or position is None:
        raise click.UsageError(
            f"--check expects the whole line, `farm launcher --check sbatch ... farm.sh ...`, with "
            f"a file that `farm launcher` has written; got: {shlex.join(line) or 'no words'}"
        )
    script, words = line[position], line[position + 1 :]
    if ":" in words:
        raise click.UsageError(
            "sbatch removes the word : wherever it stands; between kinds of workers use +"
        )
    components = _split(line[1:position])
    sizes = [_size(script, options, first=not i) for i, options in enumerate(components)]
    variables = dict(sizes[0])
    if len(sizes) > 1:
        variables["SLURM_HET_SIZE"] = str(len(sizes))
        for i, size in enumerate(sizes):
            variables |= {f"{name}_HET_GROUP_{i}": value for name, value in size.items()}
    done = subprocess.run(
        ["bash", script, "--check", *words],
        env={**SLURM.outside_jobs(os.environ), **variables},
        check=False,
    )
    return done.returncode


def _is_launcher(word: str) -> bool:
    try:
        return "\nprogram=" in Path(word).read_text(encoding="utf-8")[:10_000]
    except (OSError, UnicodeDecodeError):
        return False


def _split(words: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _size(script: str, options: list[str], *, first: bool) -> dict[str, str]:
    """Return the variables with the size of a component, as SLURM would set them in its job.

    The script's own #SBATCH lines are for the first component. Raises ClickException if SLURM
    refuses the options.
    """
    command = [script] if first else ["--wrap", "true"]
    answer = _asked(["sbatch", "--test-only", *options, *command])
    match = SIZE.search(answer)
    if match is None:
        raise click.ClickException(
            f"sbatch --test-only answers {answer.strip()!r}; expected the processors and nodes"
        )
    total = int(match[1])
    nodes = len(_asked(["scontrol", "show", "hostnames", match[2]]).split())
    each = [total // nodes + (i < total % nodes) for i in range(nodes)]
    said = [*(_own_options(script) if first else []), *options]
    variables = {
        "SLURM_JOB_ID": "0",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_CPUS_PER_NODE": ",".join(map(str, each)),
    }
    if per_task := _value("cpus", said):
        variables["SLURM_CPUS_PER_TASK"] = str(per_task)
    if tasks := _value("ntasks", said) or nodes * _value("ntasks_per_node", said):
        variables["SLURM_NTASKS"] = str(tasks)
    return variables


def _own_options(script: str) -> list[str]:
    lines = Path(script).read_text(encoding="utf-8").splitlines()
    return [
        word
        for line in lines
        if line.startswith("#SBATCH ")
        for word in shlex.split(line.removeprefix("#SBATCH "), comments=True)
    ]


def _value(name: str, words: Sequence[str]) -> int:
    """Return the last value of an option of sbatch; 0 without one."""
    found = 0
    for i, word in enumerate(words):
        match = OPTIONS[name].fullmatch("\0".join(words[i : i + 2]))
        match = match or OPTIONS[name].fullmatch(word)
        if match:
            found = int(next(filter(None, match.groups())))
    return found


def _asked(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise click.ClickException(f"no {command[0]} here; --check asks SLURM") from None
    except subprocess.TimeoutExpired:
        raise click.ClickException(
            f"{command[0]} has not answered in {ASK_TIMEOUT_S:g} s"
        ) from None
    if done.returncode:
        raise click.ClickException(f"{shlex.join(command)}: {done.stdout.strip()}")
    return done.stdout
