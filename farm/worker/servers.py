"""Models of servers that already run, found by URL; several servers of one model share its calls.

With several servers, each model process uses one, and exits when that server is gone. The farm thus
handles a lost server like a lost worker: its calls run elsewhere, and the process is restarted
until the server is back.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from farm.declared import Tensors
from farm.descriptors import Remote, built_in, installed, resolve
from farm.errors import Unavailable
from farm.functions import ForwardingModel
from farm.machine.listener import CONNECT_TIMEOUT_S
from farm.machine.programs import EXIT_SERVER_GONE
from farm.model import Config, Model
from farm.worker.kinds import CONTAINERS

SEAT = "FARM_REPLICA"
"""The environment variable with which a supervisor numbers its processes."""


LOOK_EVERY_S = 2.0
"""Time between two checks of an idle server."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=:/)")


def urls_of(spec: str) -> list[str]:
    """Return the URLs in `MODEL@url1,url2`; empty if `spec` names no server.

    Raises Unavailable if another package's protocol, loaded for a URL scheme that farm's own
    protocols do not know, fails to load.
    """
    match = _server(spec)
    return [] if match is None else re.split(rf",(?={_url(_remotes(spec))})", match["urls"])


def models_of(spec: str) -> Mapping[str, Model]:
    """Return the models of the server, or of the one of several servers that this process uses.

    Raises FarmErrors; Unavailable also if several are named and no supervisor assigns one.
    """
    match = _server(spec)
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


def forms() -> list[str]:
    """Return the forms of server URLs, for messages."""
    return [remote.form for remote in _own()]


def _own() -> list[Remote]:
    """Return the remotes that come with farm."""
    return [CONTAINERS, *(remote for protocol in built_in() for remote in protocol.remotes)]


def _remotes(spec: str) -> dict[str, Remote]:
    """Return the remotes by scheme: farm's own, plus others' if the text has another scheme."""
    known = {s: r for r in _own() for s in r.schemes}
    if not known.keys() >= set(_SCHEME.findall(spec)):
        known |= {s: r for protocol in installed() for r in protocol.remotes for s in r.schemes}
    return known


def _url(schemes: Iterable[str]) -> str:
    """Return a pattern for the start of URLs of these schemes; a Unix socket's has a path."""
    ends = (re.escape(s) + (":/" if s.endswith("+unix") else "://") for s in schemes)
    return f"(?:{'|'.join(ends)})"


def _server(spec: str) -> re.Match[str] | None:
    if ":/" not in spec:
        return None
    # A model's name ends before any URL: options of a container may hold another.
    pattern = rf"(?:(?P<model>(?:(?!:/).)+)@)?(?P<urls>{_url(_remotes(spec))}.+)"
    return re.fullmatch(pattern, spec, re.DOTALL)


def _models_at(url: str, name: str | None) -> Mapping[str, Model]:
    remote = _remotes(url)[url.partition(":")[0]]
    models: Mapping[str, Model] = resolve(remote.models_at)(url, name)
    return models


class Replica(ForwardingModel):
    """The model of one of several servers; the process ends if that server does not answer."""

    def __init__(self, model: Model, url: str) -> None:
        self._model = model
        self._url = url
        self._running = 0
        self._ran_at = 0.0
        self.like(model)
        self.description = f"{model.name} at several servers"  # the same in all processes
        threading.Thread(target=self._look_after, name="server", daemon=True).start()

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the server's description."""
        described: tuple[Tensors, Tensors] = self.ask("describe", config)
        return described

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what the server's model returns."""
        self._running += 1
        try:
            return getattr(self._model, method)(*arguments)
        except Unavailable as error:
            end_process(error)
        finally:
            self._running -= 1
            self._ran_at = time.monotonic()

    def _look_after(self) -> None:
        """Check the server while it is idle: otherwise the next call would wait for it or be lost.

        A server that runs a call is not checked, because some accept only one connection at a time.
        """
        while True:
            time.sleep(LOOK_EVERY_S)
            if self._running or time.monotonic() - self._ran_at < LOOK_EVERY_S:
                continue
            try:
                reach(self._url)
            except OSError as error:
                why = error.strerror or str(error)
                end_process(Unavailable(f"the model server {self._url} cannot be reached: {why}"))


def reach(url: str) -> None:
    """Connect to a server and disconnect. Raises OSError."""
    scheme, _, path = url.partition(":")
    if scheme.endswith("+unix"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path.removeprefix("//"))
        return
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme.endswith("https") else 80)
    socket.create_connection((parts.hostname or "", port), timeout=CONNECT_TIMEOUT_S).close()


def end_process(error: Unavailable) -> NoReturn:
    """End this process because its server is gone; its supervisor starts another one."""
    print(f"farm: {error}; this process ends", file=sys.stderr, flush=True)
    # At once, without waiting for other threads: the supervisor reports the calls it was running.
    os._exit(EXIT_SERVER_GONE)
