"""Running servers as models, by URL; also several servers of one model, which share its calls.

Of several each model process asks one, and ends when that is gone. So a server that is gone is a
worker that is lost, which a farm knows how to deal with: its calls run elsewhere, and the process
is started anew until the server is back.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from farm.errors import Unavailable
from farm.model import Config, Model, Tensors, operations_of
from farm.worker import graphpipe, kserve, mip, umbridge
from farm.worker.http import CONNECT_TIMEOUT_S

SEAT = "FARM_REPLICA"
"""The environment variable by which a supervisor gives each of its processes a number."""

EXIT_SERVER_GONE = 69
"""Exit status of a process whose server does not answer (EX_UNAVAILABLE)."""

LOOK_EVERY_S = 2.0
"""How often a server that is asked nothing is looked after."""

URL = r"(?:(?:(?:kserve|graphpipe)\+)?https?://|mip://|mip\+unix:/)"
SERVER = re.compile(rf"(?:(?P<model>.+)@)?(?P<urls>{URL}.+)", re.DOTALL)
_NEXT_URL = re.compile(rf",(?={URL})")

KINDS: Mapping[str, Callable[[str, str | None], Mapping[str, Model]]] = {
    "kserve+": kserve.models_at,
    "graphpipe+": graphpipe.models_at,
    "mip": mip.models_at,
    "http": umbridge.models_at,
}
"""What finds the models of a running server, by how its URL begins; a `+` belongs to farm alone."""


def urls_of(spec: str) -> list[str]:
    """The URLs in `MODEL@url1,url2`; none where that is no server."""
    match = SERVER.fullmatch(spec)
    return [] if match is None else _NEXT_URL.split(match["urls"])


def models_of(spec: str) -> Mapping[str, Model]:
    """The models of the server, or of the one of several that this process is to ask.

    Raises FarmErrors; Unavailable also where several are named and no supervisor deals them out.
    """
    match = SERVER.fullmatch(spec)
    assert match is not None, "urls_of says so"
    urls = urls_of(spec)
    if len(urls) == 1:
        return _models_at(urls[0], match["model"])
    if SEAT not in os.environ:
        raise Unavailable(
            f"{len(urls)} servers of one model are for model processes that farm serve or farm "
            "worker start; name one here"
        )
    url = urls[int(os.environ[SEAT]) % len(urls)]
    found = _models_at(url, match["model"])
    return {name: Replica(model, url) for name, model in found.items()}


def _models_at(url: str, name: str | None) -> Mapping[str, Model]:
    start, models_at = next((s, f) for s, f in KINDS.items() if url.startswith(s))
    return models_at(url.removeprefix(start) if start.endswith("+") else url, name)


class Replica(Model):
    """The model of one of several servers; the process ends when that server does not answer."""

    def __init__(self, model: Model, url: str) -> None:
        self._model = model
        self._url = url
        self._running = 0
        self._ran_at = 0.0
        self.name = model.name
        self.description = model.description
        self.max_batch = model.max_batch
        self.repeatable = model.repeatable
        self.operations = operations_of(model)
        threading.Thread(target=self._look_after, name="server", daemon=True).start()

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """The server's description."""
        described: tuple[Tensors, Tensors] = self._asked("describe", config)
        return described

    def evaluate(self, *arguments: Any) -> Any:
        """The server's value."""
        return self._asked("evaluate", *arguments)

    def gradient(self, *arguments: Any) -> Any:
        """J^T sens, from the server."""
        return self._asked("gradient", *arguments)

    def apply_jacobian(self, *arguments: Any) -> Any:
        """J vec, from the server."""
        return self._asked("apply_jacobian", *arguments)

    def apply_hessian(self, *arguments: Any) -> Any:
        """The Hessian's action, from the server."""
        return self._asked("apply_hessian", *arguments)

    def _asked(self, method: str, *arguments: Any) -> Any:
        self._running += 1
        try:
            return getattr(self._model, method)(*arguments)
        except Unavailable as error:
            _end(error)
        finally:
            self._running -= 1
            self._ran_at = time.monotonic()

    def _look_after(self) -> None:
        """While nothing is asked: calls would wait for a server that is gone, or be lost with it.

        A server that runs a call is left alone, as some take one connection at a time.
        """
        while True:
            time.sleep(LOOK_EVERY_S)
            if self._running or time.monotonic() - self._ran_at < LOOK_EVERY_S:
                continue
            try:
                reach(self._url)
            except OSError as error:
                why = error.strerror or str(error)
                _end(Unavailable(f"the model server {self._url} cannot be reached: {why}"))


def reach(url: str) -> None:
    """Connect to a server, and no more. Raises OSError."""
    if url.startswith("mip+unix:"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(url.removeprefix("mip+unix:").removeprefix("//"))
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme.endswith("https") else 80)
    socket.create_connection((parts.hostname or "", port), timeout=CONNECT_TIMEOUT_S).close()


def _end(error: Unavailable) -> NoReturn:
    print(f"farm: {error}; this process ends", file=sys.stderr, flush=True)
    # At once, whatever other threads do: the supervisor says which calls it was running.
    os._exit(EXIT_SERVER_GONE)
