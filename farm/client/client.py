"""The way in: `connect` finds a farm, or any UM-Bridge server, and gives a Client."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from farm.call import Call, Hints, ModelInfo, Result, canonical_config
from farm.client.remote import RemoteModel
from farm.errors import FarmError, ModelNotFound, Unavailable
from farm.transports.connection import read_connection
from farm.transports.http_client import HttpLine
from farm.transports.line import Line, as_it_is, submit
from farm.transports.native_client import NativeLine

RUN_FOLDER = Path("farm-run")
"""Where `farm serve` keeps its connection file unless told otherwise."""

LOST_AFTER_S = 30.0
"""Silence of a farm's dispatcher after which calls fail."""

GONE_S = 2.0
"""How long a farm may take to answer whose process is not to be seen."""


def connect(
    target: str | Path | None = None,
    *,
    client: str = "",
    priority: int = 0,
    deadline_s: float | None = None,
    token: str | None = None,
    connections: int | None = None,
) -> Client:
    """A client of the farm, or of the UM-Bridge server, at `target`.

    target: a farm's connection file or run folder, for the native wire; or a URL such as
    `http://host:4242` or `http://user:TOKEN@host:4242`, of a farm or of anybody's UM-Bridge
    server. None: the environment's FARM_CONNECTION or else FARM_URL, or else ./farm-run.
    client: the name under which the farm shares out its workers between clients; priority: higher
    goes first; deadline_s: seconds after which the answer to a call is of no use.
    token: for a farm by URL, if the URL has none; connections: to a URL at the most, at a time.

    Raises Unavailable when nobody answers there.
    """
    given = _default_target() if target is None else target
    hints = Hints(client, priority, deadline_s)
    line: Line
    if isinstance(given, str) and re.match(r"https?://", given, re.IGNORECASE):
        line = HttpLine(given, token=token, connections=connections)
    else:
        line = _native_line(Path(given))
    try:
        line.names()
    except BaseException:
        line.close()
        raise
    again = (given, client, priority, deadline_s, token, connections)
    return Client(line, hints, again)


def _default_target() -> str | Path:
    for name in ("FARM_CONNECTION", "FARM_URL"):
        value = os.environ.get(name)
        if value:
            return value
    if (RUN_FOLDER / "farm.json").exists():
        return RUN_FOLDER
    raise Unavailable(
        "which farm? Give connect a URL, a connection file or a run folder, or set "
        "FARM_CONNECTION or FARM_URL; there is no farm-run/farm.json here, which `farm serve` "
        "would have written"
    )


def _native_line(path: Path) -> NativeLine:
    connection = read_connection(path)
    if connection.host != socket.gethostname() or _lives(connection.pid):
        return NativeLine(connection, lost_after_s=LOST_AFTER_S)
    line = NativeLine(connection, answer_s=GONE_S)
    try:
        line.names()
    except Unavailable:
        line.close()
        raise Unavailable(
            f"the farm that wrote {path} (process {connection.pid} on this host) has ended"
        ) from None
    line.close()
    # The process has another number where we are, as in a container.
    return NativeLine(connection, lost_after_s=LOST_AFTER_S)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Client:
    """A farm's client, or that of a UM-Bridge server. Threads may share it; processes may not.

    Pickled, it connects anew where it is unpickled. As a context manager it closes at the end.
    """

    def __init__(self, line: Line, hints: Hints, address: tuple[Any, ...]) -> None:
        """`connect` makes clients. address: its arguments."""
        self.line = line
        self.hints = hints
        self._address = address

    def models(self) -> list[str]:
        """The names of the models that are served."""
        return sorted(self.line.names())

    def expect_models(self) -> list[str]:
        """The same for who cannot go on without one.

        Raises Unavailable when there is none yet and the farm says what it waits for.
        """
        names = self.models()
        if not names:
            try:
                self.describe("")
            except Unavailable:
                raise
            except FarmError:
                pass  # it waits for nothing, or is no farm
        return names

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """What a model says of itself for a config. Raises FarmError."""
        return self.line.describe(model, canonical_config(config))

    def model(self, name: str | None = None) -> RemoteModel:
        """A model as an object to call; without a name the only one there is.

        Raises ModelNotFound, or Unavailable while a farm awaits its first workers.
        """
        names = self.expect_models()
        if name is None and len(names) == 1:
            (name,) = names
        if name not in names:
            served = ", ".join(names) or "none; no worker has joined yet"
            asked = "say which model" if name is None else f"model {name!r} is not served here"
            raise ModelNotFound(f"{asked}; the models are: {served}")
        return RemoteModel(self, name)

    def submit(self, call: Call, hints: Hints | None = None) -> Future[Result]:
        """The result of a call to come; `cancel()` takes it back.

        hints: instead of those given to `connect`.
        """
        return submit(self.line, call, hints or self.hints, as_it_is)

    def status(self) -> dict[str, Any]:
        """Workers, queues, rates and percentiles as JSON data.

        Raises UnsupportedFeature when the server is no farm.
        """
        return self.line.status()

    def close(self) -> None:
        """Let go of every resource; calls without an outcome fail with Cancelled."""
        self.line.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect_again, self._address


def _connect_again(
    target: str | Path,
    client: str,
    priority: int,
    deadline_s: float | None,
    token: str | None,
    connections: int | None,
) -> Client:
    return connect(
        target,
        client=client,
        priority=priority,
        deadline_s=deadline_s,
        token=token,
        connections=connections,
    )
