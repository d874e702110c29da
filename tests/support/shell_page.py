"""The blocks of a shell on a page, typed one after another into one folder.

Texts that cannot run as they are shown, such as a port or another person's host, are replaced, and
each replacement must match. Files that a page leaves to its reader, such as a model, are
prepared by the test between the blocks.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import farm
from farm.transports.connection import Connection, read_connection
from tests.support.dispatcher_farm import run_here
from tests.support.shown_blocks import blocks, is_shell, text_of
from tests.support.terminal import LIMIT_S, Terminal

ROOT = Path(__file__).parents[2]
SERVE = re.compile(r"^farm serve", re.M)
PIP = """#!/bin/sh
python -m pip "$@" 2> "$0.errors" || { cat "$0.errors" >&2; exit 1; }
! grep 'does not provide the extra' "$0.errors" >&2
"""
"""pip itself only warns of an extra that there is not."""


class ShellPage(Terminal):
    """A terminal with a page beside it, whose blocks of a shell are typed from top to bottom.

    instead: texts of the page, and the texts that are typed in their place. `pip` only
    says what it would install, and asks no index: a block of it fails if the packages of an extra
    are not there. `curl` fails where a server answers with an error, and a pipe where a part of it
    fails.
    """

    def __init__(self, page: str, folder: Path, instead: Mapping[str, str] | None = None) -> None:
        work = folder / "work"
        work.mkdir()
        super().__init__(work)
        program = folder / "bin" / "pip"
        program.write_text(PIP)
        program.chmod(0o755)
        (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")
        settings = folder / ".bashenv"
        settings.write_text("set -o pipefail\nunset BASH_ENV\n")  # not for scripts of others
        self.environment |= {
            "CURL_HOME": str(folder),
            "PIP_DRY_RUN": "1",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "BASH_ENV": str(settings),
        }
        self.page = page
        shown = blocks(text_of(page))
        self.left = [block.text for block in shown if is_shell(block) and not block.note]
        self.instead = dict(instead or {})
        self.unmatched = set(self.instead)

    def replace(self, shown: str, typed: str) -> None:
        """Type a text in place of another one from here on."""
        self.instead[shown] = typed
        self.unmatched.add(shown)

    def type_next(self, start: str) -> str:
        """Type the next block, which begins with this text; return what it prints."""
        return self.type(self._next(start))

    def serve_each(self, start: str, *names: set[str]) -> None:
        """Type each line of the next block, farms in place of each other; these models come."""
        lines = self._next(start).strip().splitlines()
        assert len(lines) == len(names), lines
        for line, expected in zip(lines, names, strict=True):
            self.type(line)
            assert set(self.models()) == expected, line

    def _next(self, start: str) -> str:
        assert self.left, f"{self.page} has no further block: {start}"
        text = self.left.pop(0)
        assert text.startswith(start), f"{self.page}: {text}"
        for shown, typed in self.instead.items():
            if shown in text:
                self.unmatched.discard(shown)
                text = text.replace(shown, typed)
        return text

    def type(self, text: str) -> str:
        """Run a block; a farm in it goes on in the background, and ends the one before."""
        if SERVE.search(text):
            self.serve(text)
            return ""
        return super().type(text)

    def serve(self, text: str) -> None:
        """Type a block that ends with a farm; return when the farm has a worker."""
        self.end_server()
        self.server = subprocess.Popen(
            ["bash", "-euc", SERVE.sub("exec farm serve", text)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        printed = ""
        for line in self.server.stdout:
            printed += line
            if line.startswith("connection file "):
                break
        assert "http://127.0.0.1:" in printed, f"{text}\n{printed}"
        assert self.models() != []

    def end_server(self) -> None:
        """End the farm in order, as Ctrl-C does."""
        if self.server is not None:
            server = self.server
            self.close()
            assert server.returncode == 0

    @property
    def connection(self) -> Connection:
        return read_connection(self.folder / "farm-run")

    def connect(self, client: str = "", chain: str = "") -> farm.Client:
        return farm.connect(self.folder / "farm-run", client=client, chain=chain)

    def models(self) -> list[str]:
        """Return the names of the models that the farm serves, once it has a worker."""
        limit = time.monotonic() + LIMIT_S
        with self.connect() as client:
            while not (names := client.models()):
                assert time.monotonic() < limit, "no worker joins"
                time.sleep(0.02)
        return names

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def prepare(self, command: str, status: int = 0) -> None:
        """Run a command of farm that is not on the page, within this process."""
        program, *words = shlex.split(command)
        assert program == "farm"
        ended, out, err = run_here(*words, cwd=self.folder)
        assert ended == status, (command, out, err)

    def __enter__(self) -> ShellPage:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.close()
            return
        self.end_server()
        assert self.left == [], f"{self.page}: blocks that are not typed"
        assert self.unmatched == set(), f"{self.page}: replacements without a match"
