"""The lines of a shown block, typed one by one, some of them in terminals of their own."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.shown_blocks import blocks, is_shell, text_of
from tests.support.terminal import Terminal
from tests.support.time_limits import scaled

ROOT = Path(__file__).parents[2]
BEAM = next(b.text for b in blocks((ROOT / "README.md").read_text()) if "class Beam" in b.text)
"""The model of the README, which the pages name beam.py."""
POINT = {"load": 500.0, "thickness": 0.02}
LIMIT_S = scaled(60)


def shell_blocks(page: str) -> list[str]:
    """Return the blocks of a shell on a page, fenced or not, in their order."""
    return [block.text for block in blocks(text_of(page)) if is_shell(block)]


def lines(block: str) -> list[str]:
    """Return the commands of a block, each without its comment and on one line."""
    whole = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+# .*", "", line) for line in whole if line.strip()]


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Return the text with other sizes and names; each old one must be in it."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, new)
    return text


def terminal_in(folder: Path) -> Terminal:
    """Return a terminal in a new folder with beam.py; its path has the programs beside Python."""
    folder.mkdir()
    (folder / "beam.py").write_text(BEAM)
    terminal = Terminal(folder)
    own, _, rest = terminal.environment["PATH"].partition(":")
    terminal.environment["PATH"] = f"{own}:{Path(sys.executable).parent}:{rest}"
    return terminal


def until_its_end(block: str) -> str:
    """Return a block that leaves a farm in the background, with that farm's end and exit status."""
    trap = "trap 'kill $(jobs -p) 2>&- || true' EXIT\n"  # if a command of the block fails
    return f'{trap}{block}\nfarm stop --to farm-run\nwait "$!"\n'


@contextlib.contextmanager
def going(terminal: Terminal, line: str, *, status: int | None = 0) -> Iterator[None]:
    """Run a line of a server or workers for the block; SIGTERM ends it with this exit status."""
    log = terminal.folder.parent / f"{len(list(terminal.folder.parent.glob('*.log')))}.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            ["bash", "-euc", f"exec env {line}"],
            cwd=terminal.folder,
            env=terminal.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            yield
        except BaseException as error:
            error.add_note(f"{line}\n{log.read_text()}")
            raise
        finally:
            early = process.poll()
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert early is None, f"{line} ended by itself:\n{log.read_text()}"
    assert status is None or code == status, f"{line} ended with {code}:\n{log.read_text()}"
