"""A relay whose connections a test may cut, as a network does."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from dataclasses import replace
from typing import Self

from farm.transports.connection import Connection


class Proxy:
    """Relays every connection to a farm's dispatcher; `connection` leads there by this relay."""

    def __init__(self, target: Connection) -> None:
        self.target(target)
        self._folder = tempfile.TemporaryDirectory()
        if target.local:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(f"{self._folder.name}/relay")
            self._listener.listen()
            self.connection = replace(target, local=self._listener.getsockname())
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            port = self._listener.getsockname()[1]
            self.connection = replace(target, endpoint=f"tcp://127.0.0.1:{port}")
        self.accepted = 0
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._sockets: list[socket.socket] = []
        self._deaf = False
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def target(self, target: Connection) -> None:
        """Set the address for new connections."""
        self._target = target

    def _dial(self) -> socket.socket:
        if self._target.local:
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target.local)
            return far
        host, _, port = self._target.endpoint.removeprefix("tcp://").rpartition(":")
        return socket.create_connection((host, int(port)))

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = self._dial()
            except OSError:
                near.close()
                continue
            with self._lock:
                self.accepted += 1
                self._sockets += [near, far]
                if self._closed:
                    self._close_all()
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._deaf:
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def swallow(self) -> None:
        """Pass nothing from now on, though the connections stay open; until the next cut."""
        self._deaf = True

    def cut(self) -> None:
        """Break every connection; new ones are relayed."""
        with self._lock:
            self._close_all()
            self._deaf = False

    def _close_all(self) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._listener.close()
        self._folder.cleanup()
        with self._lock:
            self._closed = True
            self._close_all()
