"""A load of HTTP callers from one process: each sends its next request after its answer."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass, field


@dataclass
class Load:
    """The result of a load: number of calls, duration, and every latency in seconds."""

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    def add(self, other: Load) -> None:
        """Add another load of the same peer."""
        self.seconds += other.seconds
        self.latencies_s += other.latencies_s

    @property
    def per_s(self) -> float:
        """Calls answered per second."""
        return len(self.latencies_s) / self.seconds

    @property
    def p50_s(self) -> float:
        """Median latency."""
        return sorted(self.latencies_s)[len(self.latencies_s) // 2]


class _Caller:
    def __init__(self, address: tuple[str, int], *, fresh: bool) -> None:
        self.address = address
        self.fresh = fresh
        self.socket: socket.socket | None = None
        self.answer = bytearray()
        self.whole = 0
        self.sent_at = 0.0

    def send(self, request: bytes, selector: selectors.BaseSelector) -> None:
        if self.socket is None:
            self.sent_at = time.perf_counter()
            self.socket = socket.create_connection(self.address)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(self.socket, selectors.EVENT_READ, self)
        else:
            self.sent_at = time.perf_counter()
        self.answer = bytearray()
        self.whole = 0  # bytes of the answer, known once its head has arrived
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Read the available bytes; return whether the answer is complete."""
        assert self.socket is not None
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError(f"the server hung up after {self.answer!r}")
        self.answer += data
        if not self.whole:
            end = self.answer.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = self.answer[:end].lower()
            at = head.index(b"content-length:") + 15
            self.whole = end + 4 + int(head[at:].split(b"\r\n", 1)[0])
        return len(self.answer) >= self.whole

    def hang_up(self, selector: selectors.BaseSelector) -> None:
        assert self.socket is not None
        selector.unregister(self.socket)
        self.socket.close()
        self.socket = None


def run_load(
    address: tuple[str, int],
    path: str,
    body: bytes,
    *,
    callers: int,
    seconds: float,
    fresh: bool,
    expected: bytes,
    headers: str = "Content-Type: application/json",
) -> Load:
    """Run `callers` at once for `seconds`. fresh: a new connection per call, as stock clients do.

    headers: lines of the head besides `Host` and `Content-Length`.
    Raises RuntimeError if an answer is not status 200 with `expected` in its body.
    """
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        f"{headers}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    load = Load()
    selector = selectors.DefaultSelector()
    all_callers = [_Caller(address, fresh=fresh) for _ in range(callers)]
    start = time.perf_counter()
    for caller in all_callers:
        caller.send(request, selector)
    waiting = callers
    while waiting:
        for key, _ in selector.select(10.0):
            caller = key.data
            if not caller.receive():
                continue
            now = time.perf_counter()
            if not (caller.answer.startswith(b"HTTP/1.1 200") and expected in caller.answer):
                raise RuntimeError(f"a wrong answer: {caller.answer!r}")
            load.latencies_s.append(now - caller.sent_at)
            over = now - start > seconds
            if fresh or over:
                caller.hang_up(selector)
            if over:
                waiting -= 1
            else:
                caller.send(request, selector)
    load.seconds = time.perf_counter() - start
    selector.close()
    return load
