"""A terminal in which a test types what a page shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.time_limits import scaled

LIMIT_S = scaled(100)


class Terminal:
    """A folder and an environment in which a reader types; `farm` is the one under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder.parent / "bin"
        programs.mkdir(exist_ok=True)
        for name, words in (("farm", "-m farm"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            program.chmod(0o755)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("FARM_")}
        self.environment = clean | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FARM_PORT": "0",
        }
        self.server: subprocess.Popen[str] | None = None
        self.errors = ""

    def type(self, text: str) -> str:
        """Run a block in a shell, and return what it prints; a server goes on in the background."""
        if text.startswith("farm serve"):
            self.serve(text)
            return ""
        ended = subprocess.run(
            ["bash", "-euc", text],
            cwd=self.folder,
            env=self.environment,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        self.errors = ended.stderr
        assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
        if text.startswith("farm stop"):
            assert self.server is not None
            assert self.server.wait(LIMIT_S) == 0
            self.close()
        return ended.stdout

    def serve(self, text: str) -> None:
        self.server = subprocess.Popen(
            ["bash", "-euc", f"exec {text}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        assert any("http://127.0.0.1:" in line for line in self.server.stdout)

    def close(self) -> None:
        if self.server is not None:
            with self.server as server:  # closes what it prints to, and waits
                server.send_signal(signal.SIGTERM)
            self.server = None
