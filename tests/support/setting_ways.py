"""Sets the settings of a farm in each documented way, and starts farms with them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import urllib3

import farm
from farm.errors import Unavailable
from farm.transports.connection import Connection, read_connection
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import FARM, LIMIT_S, environment
from tests.support.forked_commands import ForkedCommand
from tests.support.span_collector import SpanCollector

WAYS = ("option", "variable", "file", "python")
"""A command-line option, an environment variable, a key of farm.toml, an argument in Python."""


def text_of(value: Any) -> str:
    """Return a value as in a variable; of several texts, those between spaces."""
    return " ".join(value) if isinstance(value, list) else str(value)


def options_of(values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that set these values."""
    words: list[str] = []
    for name, value in values.items():
        flag = name.removesuffix("_s").replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{flag}", str(each)]
    return words


def variables_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that set these values."""
    return {f"FARM_{name.upper()}": text_of(value) for name, value in values.items()}


def keys_of(values: Mapping[str, Any]) -> str:
    """Return the text of a farm.toml that sets these values."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def command_line(
    way: str, values: Mapping[str, Any], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Return words and variables for `farm serve` in `folder`, and write a file if that is the way.

    way: one of `WAYS`, but not "python".
    """
    if way == "option":
        return options_of(values), {}
    if way == "variable":
        return [], variables_of(values)
    (folder / "farm.toml").write_text(keys_of(values))
    return ["--config", "farm.toml"], {}


@dataclass
class There:
    """A running farm, as its clients and its owner see it.

    values: its settings; folder: where it was started; run: its run folder; pid: the process that
    was started; errors: its stderr, if it is not this one. stop: ends it in order. spans: receives
    its spans. limit_s: for events that should happen at once.
    """

    values: Mapping[str, Any]
    folder: Path
    run: Path
    connection: Connection
    client: farm.Client
    pid: int
    errors: Path | None
    stop: Callable[[], None]
    spans: SpanCollector | None = None
    limit_s: float = LIMIT_S

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, `limit_s` seconds at most."""
        wait_until(condition, self.limit_s)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        token: bool = True,
    ) -> tuple[int, bytes]:
        """Return status and body of an HTTP answer; a body of several parts is sent in chunks."""
        with_token = {"Authorization": f"Bearer {self.connection.token}"} if token else {}
        answer = urllib3.request(
            method,
            self.connection.url + path,
            body=body,
            headers={**with_token, **(headers or {})},
            timeout=self.limit_s,
            retries=False,
        )
        return answer.status, answer.data

    def evaluate(
        self, model: str, x: Any, *, client: str = "", **config: Any
    ) -> tuple[int, dict[str, Any]]:
        """Return status and answer of an evaluation over UM-Bridge."""
        body = json.dumps({"name": model, "input": [[x]], "config": config}).encode()
        status, data = self.ask("POST", "/Evaluate", body, headers={"Farm-Client": client})
        return status, json.loads(data)


@contextlib.contextmanager
def started(
    way: str, values: Mapping[str, Any], folder: Path, models: Sequence[str]
) -> Iterator[There]:
    """Run a farm of the models in `folder` with these settings, which include `dir`.

    way: for "python", this process has to be in the folder.
    """
    start = _in_python if way == "python" else _as_command
    with start(way, values, folder, models) as there:
        yield there


@contextlib.contextmanager
def _in_python(
    way: str, values: Mapping[str, Any], folder: Path, models: Sequence[str]
) -> Iterator[There]:
    run = folder / values["dir"]
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(farm.serve(*models, output="log", **values))
        connection = read_connection(run)
        yield There(values, folder, run, connection, client, os.getpid(), None, stack.close)


def start_command(
    words: list[str],
    folder: Path,
    variables: Mapping[str, str],
    errors: Path,
    *,
    forks: bool = True,
) -> Popen[str]:
    """Start `farm` with these words. errors: the file of its stderr.

    forks: False for a program of its own, as a keeper has to be, which starts programs.
    """
    with errors.open("w") as stderr:
        return (ForkedCommand if forks else Popen)(
            words if forks else [*FARM, *words],
            cwd=folder,
            env={**environment(), **variables},
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=stderr,
            text=True,
        )


@contextlib.contextmanager
def _as_command(
    way: str, values: Mapping[str, Any], folder: Path, models: Sequence[str]
) -> Iterator[There]:
    run, errors = folder / values.get("dir", "farm-run"), folder / "stderr"
    words, variables = command_line(way, values, folder)
    process = start_command(
        ["serve", *models, *words], folder, variables, errors, forks="supervise" not in values
    )

    def stop() -> None:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)

    def serves() -> bool:
        assert process.poll() is None, errors.read_text()
        with contextlib.suppress(Unavailable):
            return bool(read_connection(run).url)
        return False

    try:
        wait_until(serves, LIMIT_S)
        with farm.connect(run) as client:
            connection = read_connection(run)
            yield There(values, folder, run, connection, client, process.pid, errors, stop)
        stop()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
