"""`farm serve` as a separate process, for tests of the command line and of whole systems."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest

import farm
from farm.cli import run
from farm.errors import Unavailable
from farm.transports.connection import Connection, read_connection
from tests.support.coroutines import wait_until
from tests.support.forked_commands import SETTINGS, ForkedCommand, interpreter_settings
from tests.support.time_limits import scaled

LIMIT_S = scaled(30.0)
"""Limit for events that take a second or two on an idle machine."""

FARM = (sys.executable, "-m", "farm")

BEAM = """
import os, time
import farm

class Beam(farm.Model):
    name = "beam"
    inputs = {"E": 3, "load": 1}
    outputs = {"bent": 3}

    def evaluate(self, inputs, config):
        if "begun" in config:
            open(config["begun"], "w").close()
        if "sleep" in config:
            time.sleep(config["sleep"])
        if "exit" in config:
            os._exit(config["exit"])
        if "raise" in config:
            raise ValueError(config["raise"])
        return inputs["load"] / inputs["E"]

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        if in_wrt == 0:
            return -sens * inputs["load"] / inputs["E"] ** 2
        return [(sens / inputs["E"]).sum()]
"""


def environment() -> dict[str, str]:
    """This process's environment without farm's settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith("FARM_")}


def run_farm(*arguments: str, cwd: Path, timeout_s: float = LIMIT_S) -> tuple[int, str, str]:
    """Run a command to its end: status, stdout, stderr."""
    with start_farm(*arguments, cwd=cwd) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return process.returncode, output, errors


def run_here(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Run a command within this process: for one refused before anything is started."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        patch.dict(os.environ, environment(), clear=True),
    ):
        status = run([*arguments])
    return status, out.getvalue(), errors.getvalue()


def start_farm(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """A running command, whose output can be read.

    It is forked unless variables for Python have been set, such as a PYTHONPATH with plug-ins.
    """
    variables = environment()
    forks = interpreter_settings(variables) == SETTINGS
    start, words = (ForkedCommand, arguments) if forks else (subprocess.Popen, [*FARM, *arguments])
    return start(
        words,
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    """End a process in order, if it runs, or by SIGKILL if it takes too long; read its output."""
    process.terminate()
    try:
        process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def farm_command(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command for the length of the block, and end it."""
    process = start_farm(*arguments, cwd=cwd)
    try:
        yield process
    finally:
        end(process)


class Served:
    """A running `farm serve`; `connection` holds its connection file.

    cold: do not wait until it knows its models.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path, *, cold: bool = False) -> None:
        self.process = process
        self.folder = folder
        self.connection = self._wait()
        if not cold:
            self._wait_for_models()

    def _wait_for_models(self) -> None:
        with farm.connect(self.folder) as client:
            wait_until(lambda: not client.status()["awaited"], LIMIT_S, every_s=0.02)

    def _wait(self) -> Connection:
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                output, errors = self.process.communicate()
                raise AssertionError(f"farm serve ended: {output}{errors}")
            with contextlib.suppress(Unavailable):
                connection = read_connection(self.folder)
                if connection.url and connection.pid == self.process.pid:
                    return connection
            time.sleep(0.02)
        raise AssertionError("farm serve did not come up")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)

    def wait_for_workers(self, count: int) -> None:
        """Wait until `count` workers have joined: the farm answers from the first one on."""
        with farm.connect(self.folder) as client:
            wait_until(lambda: len(client.status()["workers"]) == count, LIMIT_S, every_s=0.02)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal and wait for the end: status, stdout, stderr."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=LIMIT_S)
        # A start on a busy machine also says what the farm waits for.
        said = [line for line in errors.splitlines(True) if not line.startswith("waiting for ")]
        return self.process.returncode, output, "".join(said)


@contextlib.contextmanager
def serving(cwd: Path, *arguments: str, cold: bool = False) -> Iterator[Served]:
    """Run `farm serve ARGUMENTS --port 0` in `cwd`, run folder `run`, within the block.

    cold: begin the block before the models are loaded, as without workers here.
    """
    cold |= "--cluster" in arguments or ("--workers", "0") in pairwise(arguments)
    folder = cwd / "run"
    words = ("serve", *arguments, "--port", "0", "--dir", str(folder))
    with farm_command(*words, cwd=cwd) as process:
        yield Served(process, folder, cold=cold)


def farm_of(
    text: str,
    *names: str,
    options: str = "",
    workers: int = 1,
    scope: Literal["function", "module", "session"] = "module",
) -> Any:
    """A fixture: `farm serve` of models in a file `models.py` of this text, with all its workers.

    names: of the models in a file that has several; options: more words of the command line.
    """

    @pytest.fixture(scope=scope)
    def served(request: pytest.FixtureRequest) -> Iterator[Served]:
        if scope == "function":
            folder: Path = request.getfixturevalue("tmp_path")
        else:
            folder = request.getfixturevalue("tmp_path_factory").mktemp("farm")
        (folder / "models.py").write_text(text)
        models = [f"models.py:{name}" for name in names] or ["models.py"]
        with serving(folder, *models, "--workers", str(workers), *options.split()) as running:
            running.wait_for_workers(workers)
            yield running

    return served
