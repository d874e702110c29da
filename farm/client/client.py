"""`connect`, which finds a farm or any UM-Bridge server, and the Client that it returns."""

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
from farm.client.http_line import HttpLine
from farm.client.recorded_line import RecordedLine
from farm.client.remote import RemoteModel
from farm.errors import FarmError, ModelNotFound, Unavailable
from farm.transports.connection import read_connection
from farm.transports.line import Line, as_it_is, submit
from farm.transports.native_client import NativeLine

RUN_FOLDER = Path("farm-run")
"""Default folder of the connection file that `farm serve` writes."""

LOST_AFTER_S = 30.0
"""Calls fail after the farm's dispatcher has been silent for this many seconds."""

GONE_S = 2.0
"""Timeout for the first answer of a farm whose process does not seem to exist."""


def connect(
    target: str | Path | None = None,
    *,
    client: str = "",
    chain: str | None = None,
    priority: int = 0,
    deadline_s: float | None = None,
    token: str | None = None,
    connections: int | None = None,
    record: str | Path | None = None,
    reuse: bool = False,
    version: str = "",
) -> Client:
    """Connect to the farm, or to the UM-Bridge server, at `target`.

    target: a farm's connection file or run folder, for the native protocol; or a URL such as
    `http://host:4242` or `http://user:TOKEN@host:4242` of a farm or of any UM-Bridge server.
    None: the environment variable FARM_CONNECTION, then FARM_URL, then ./farm-run.
    client: client name for fair sharing of the workers; chain: the caller within the client, such
    as one chain of a sampler (default: each call by itself, and all points of `map` together);
    priority: higher goes first; deadline_s: seconds after which the answer to a call is no longer
    needed.
    token: the token of a farm, if the URL has none; connections: most simultaneous connections to a
    URL.
    record: file that keeps every evaluation of this client, for farms of others; your own farm has
    `farm serve --record`. reuse: answer exact repeats from it; this needs the models' versions, or
    `version`, which stands for all of them. A pickled client records nothing elsewhere.

    Raises Unavailable if there is no answer, or if the record is in use.
    """
    if (reuse or version) and record is None:
        raise ValueError("reuse and version need record, the file from which calls are answered")
    given = _default_target() if target is None else target
    hints = Hints(client, priority, deadline_s, chain=chain)
    line: Line
    if isinstance(given, str) and re.match(r"https?://", given, re.IGNORECASE):
        line = HttpLine(given, token=token, connections=connections)
    else:
        line = _native_line(Path(given))
    try:
        line.names()
        if record is not None:
            line = RecordedLine(line, Path(record), reuse=reuse, version=version)
    except BaseException:
        line.close()
        raise
    settings = {
        "client": client,
        "chain": chain,
        "priority": priority,
        "deadline_s": deadline_s,
        "token": token,
        "connections": connections,
    }
    return Client(line, hints, (given, settings))


def _default_target() -> str | Path:
    for name in ("FARM_CONNECTION", "FARM_URL"):
        value = os.environ.get(name)
        if value:
            return value
    if (RUN_FOLDER / "farm.json").exists():
        return RUN_FOLDER
    raise Unavailable(
        "no farm specified: pass a URL, a connection file or a run folder, or set "
        "FARM_CONNECTION or FARM_URL; the default farm-run/farm.json, which `farm serve` writes, "
        "does not exist here"
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
    # The farm lives: its process has another id in our namespace, as in a container.
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
    """A client of a farm or of a UM-Bridge server. Threads may share it; processes may not.

    A pickled client reconnects when it is unpickled. As a context manager it closes at the end.
    """

    def __init__(self, line: Line, hints: Hints, address: tuple[Any, ...]) -> None:
        """Use `connect` to make clients. address: the arguments of `connect`, for pickling."""
        self.line = line
        self.hints = hints
        self._address = address

    def models(self) -> list[str]:
        """Return the names of the served models."""
        return sorted(self.line.names())

    def expect_models(self) -> list[str]:
        """Return the names of the served models, for callers that need at least one.

        Raises Unavailable if there is none yet and the farm reports what it is waiting for.
        """
        names = self.models()
        if not names:
            try:
                self.describe("")
            except Unavailable:
                raise
            except FarmError:
                pass  # the farm is not waiting for models, or it is another kind of server
        return names

    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Return a model's description for a config. Raises FarmError."""
        return self.line.describe(model, canonical_config(config))

    def model(self, name: str | None = None) -> RemoteModel:
        """Return a served model as a callable object; without a name, the only model.

        Raises ModelNotFound, or Unavailable while a farm is waiting for its first workers.
        """
        names = self.expect_models()
        if name is None and len(names) == 1:
            (name,) = names
        if name not in names:
            served = ", ".join(names) or "none; no worker has joined yet"
            problem = "specify a model" if name is None else f"model {name!r} is not served here"
            raise ModelNotFound(f"{problem}; the models are: {served}")
        return RemoteModel(self, name)

    def submit(self, call: Call, hints: Hints | None = None) -> Future[Result]:
        """Submit a call and return a future of its result; `cancel()` cancels the call.

        hints: replace those passed to `connect`.
        """
        return submit(self.line, call, hints or self.hints, as_it_is)

    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles as JSON data.

        Raises UnsupportedFeature if the server is not a farm.
        """
        return self.line.status()

    def close(self) -> None:
        """Release all resources; open calls fail with Cancelled."""
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


def _connect_again(target: str | Path, settings: Mapping[str, Any]) -> Client:
    return connect(target, **settings)
