"""`farm launcher`: write the script that runs a farm in one SLURM job."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from farm.cli.launcher_check import check

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
