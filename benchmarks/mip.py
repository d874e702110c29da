"""MIP: calls per second of farm and of KubeMo's own server, one run, one load generator.

    python benchmarks/mip.py [--unix] [--loads trivial] [--stock]

Each call has its own connection, as with KubeMo's client; the servers alternate. Three loads: a
trivial model, a model that takes 5 ms, and packets of 1,000 entries; 1 and 16 clients at once. Two
minimal servers (bare.py) show the upper limit for the same loads: one answers itself, the other
lets another process answer over a unix socket, as farm does with a model. Clients connect by TCP,
or with `--unix` by unix sockets. Ratios are medians over the rounds. `--stock` adds 16 processes
of KubeMo's own client with the trivial model.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubemo
import numpy as np

from bare import Address, bare_server
from http_load import Load
from machine import versions

ENTRIES, SIZE = 1000, 4
SLOW_S = 0.005
WORKERS = 16
"""For the model of 5 ms, which sleeps as if waiting for a device; the other loads have two."""

FARM_MODEL = f"""
import time
import farm

class Double(farm.Model):
    name = "double"
    inputs, outputs = {{"x": {SIZE}}}, {{"y": {SIZE}}}
    max_batch = {ENTRIES}
    slow = False

    def evaluate(self, inputs, config):
        if self.slow:
            time.sleep({SLOW_S})
        return {{"y": 2.0 * inputs["x"]}}

class Slow(Double):
    slow, max_batch = True, 1
"""

CLIENTS = (1, 16)
RETRY_S = 0.0005
"""Until a client tries again that found the queue of a unix socket full."""


def packet(entries: int, *, answer: bool = False) -> bytes:
    """Return a request of KubeMo's client with `entries` entries, or an answer to it."""
    value = json.dumps([0.25 * k for k in range(SIZE)]).encode()
    tlv = struct.pack("!2L", 2, len(value)) + value
    payload = struct.pack("!2BH", 1, int(answer), entries) + tlv * entries
    return struct.pack("!4BL", 0, 2, int(answer), 0, len(payload)) + payload


class Caller:
    """One client: connects, sends, reads the answer, closes, repeatedly."""

    def __init__(self, address: Address, request: bytes, selector: selectors.BaseSelector) -> None:
        self._address, self._request, self._selector = address, request, selector
        self.connected = False
        self.begin()

    def begin(self) -> None:
        """Begin a call; a server whose queue is full delays its other clients, not this one."""
        self.began_at = time.perf_counter()
        self._socket = socket.socket(
            socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        )
        self._socket.setblocking(False)
        self._answer = bytearray()
        self._unsent = memoryview(self._request)
        self.connect()

    def connect(self) -> None:
        """Connect and send the request, as far as possible now."""
        self.connected = self._socket.connect_ex(self._address) != errno.EAGAIN
        if not self.connected:  # the queue of a unix socket is full
            return
        # On one machine a connection is usually made at once.
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        events = selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ
        self._selector.register(self._socket, events, self)

    def go_on(self) -> bool:
        """Send or read as far as possible; return whether the answer is complete and correct."""
        if self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
            if not self._unsent:
                self._selector.modify(self._socket, selectors.EVENT_READ, self)
            return False
        data = self._socket.recv(1 << 20)
        self._answer += data
        if len(self._answer) >= 8 and len(self._answer) == 8 + int.from_bytes(self._answer[4:8]):
            if self._answer[1] != 2:
                raise RuntimeError(f"an error is answered: {bytes(self._answer[:100])!r}")
            self.end()
            return True
        if not data:
            raise RuntimeError("the server hung up")
        return False

    def end(self) -> None:
        """Close the connection."""
        if self.connected:
            self._selector.unregister(self._socket)
        self._socket.close()


def run_load(address: Address, request: bytes, clients: int, seconds: float) -> Load:
    """Run `clients` clients at once for `seconds`."""
    load = Load()
    with selectors.DefaultSelector() as selector:
        start = time.perf_counter()
        callers = [Caller(address, request, selector) for _ in range(clients)]
        while (now := time.perf_counter()) - start < seconds:
            late = [caller for caller in callers if not caller.connected]
            for caller in late:
                caller.connect()
            for key, _ in selector.select(RETRY_S if late else 0.1):
                caller = key.data
                try:
                    whole = caller.go_on()
                except ConnectionResetError:  # a listener with a full queue may do this
                    caller.end()
                    caller.begin()
                    continue
                if whole:
                    load.latencies_s.append(time.perf_counter() - caller.began_at)
                    caller.begin()
        load.seconds = now - start
        for caller in callers:
            caller.end()
    return load


# The servers


class KubemoDouble(kubemo.Inference):  # type: ignore[misc]  # published without types
    """The same model, written as in its documentation."""

    def preprocess(self, inputs: Any) -> Any:
        return tuple(np.array(x.decode()) for x in inputs)

    def concat(self, batch: Any) -> Any:
        return tuple(np.stack(column) for column in zip(*batch, strict=True))

    def forward(self, inputs: Any) -> Any:
        if "slow" in sys.argv:
            time.sleep(SLOW_S)
        return (2.0 * inputs[0],)

    def postprocess(self, outputs: Any) -> Any:
        return tuple(kubemo.Json(y) for y in outputs)


def serve_kubemo(path: str) -> None:
    at: Any = ("unix", path) if path else ("tcp", ("127.0.0.1", 0))
    server = kubemo.Server(*at)
    server.handle(kubemo.InferenceHandler(KubemoDouble()))
    print(path or server.socket.getsockname()[1], flush=True)
    server.serve()


@contextlib.contextmanager
def process(*command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    quiet = subprocess.DEVNULL
    running = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=quiet, text=True)
    try:
        yield running
    finally:
        running.terminate()
        running.communicate(timeout=60)


@contextlib.contextmanager
def kubemo_server(folder: Path, kind: str, path: str) -> Iterator[Address]:
    command = (sys.executable, str(Path(__file__).resolve()), "--serve-kubemo", path, kind)
    with process(*command, cwd=folder) as running:
        assert running.stdout is not None
        port = running.stdout.readline().strip()
        yield path or ("127.0.0.1", int(port))


@contextlib.contextmanager
def farm_server(folder: Path, kind: str, path: str) -> Iterator[Address]:
    (folder / "model.py").write_text(FARM_MODEL)
    workers = WORKERS if kind == "slow" else 2
    model = "model.py:Slow" if kind == "slow" else "model.py:Double"
    command = [sys.executable, "-m", "farm", "serve", model, "-n", str(workers), "--port", "0"]
    at = f"unix:{path}" if path else "127.0.0.1:0"
    command += ["--mip", at, "--dir", str(folder / f"run-{kind}")]
    with process(*command, cwd=folder) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("MIP for"):
                time.sleep(0.2 * workers)  # time for the other workers to start
                yield path or ("127.0.0.1", int(line.rpartition(":")[2]))
                return
        raise RuntimeError("farm serve ended")


LOADS = {
    "trivial": ("trivial model", "trivial", 1),
    "slow": ("model of 5 ms", "slow", 1),
    "large": (f"packets of {ENTRIES} entries", "trivial", ENTRIES),
}


def ask(place: str, seconds: str) -> None:
    """Call with KubeMo's own client for `seconds`, after a line says go; print how many calls."""
    client, answered = kubemo.Client(), 0
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + float(seconds)
    while time.perf_counter() < end:
        value = kubemo.Json(io.BytesIO(json.dumps(list(range(SIZE))).encode()))
        try:
            ((answer,),) = client.inference(place, ((value,),))
        except ConnectionError:  # KubeMo's server, when its queue is full
            continue
        if answer.decode() != [2.0 * k for k in range(SIZE)]:
            raise RuntimeError("a wrong answer")
        answered += 1
    print(answered, flush=True)


def asked_by_processes(address: Address, count: int, seconds: float) -> list[int]:
    """Return the calls of `count` processes, each with KubeMo's own client."""
    place = f"unix://{address}" if isinstance(address, str) else f"tcp://127.0.0.1:{address[1]}"
    own = (sys.executable, str(Path(__file__).resolve()), "--ask", place, str(seconds))
    clients = [
        subprocess.Popen(own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    return [int(client.communicate()[0]) for client in clients]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=6, help="turns into which it is divided")
    parser.add_argument("--unix", action="store_true", help="connect by unix sockets, not by TCP")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--stock", action="store_true", help="also 16 processes of its client")
    options = parser.parse_args()
    print(versions("numpy", "kubemo", "uvloop"))
    names = ("farm", "kubemo", "bare relay", "bare echo")
    print(f"\n{'calls/s (median ms)':26}{'clients':>8}", end="")
    print("".join(f"{name:>20}" for name in names) + "   farm / each")
    stock: list[list[int]] = []
    with tempfile.TemporaryDirectory() as name:
        for load in options.loads:
            title, kind, entries = LOADS[load]
            paths = [f"{name}/{load}-{i}" if options.unix else "" for i in range(4)]
            with contextlib.ExitStack() as stack:
                servers = [
                    farm_server(Path(name), kind, paths[0]),
                    kubemo_server(Path(name), kind, paths[1]),
                ]
                if kind != "slow":
                    answer = packet(entries, answer=True)
                    bare = zip(("relay", "echo"), paths[2:], strict=True)
                    servers += [bare_server(which, answer, path) for which, path in bare]
                addresses = [stack.enter_context(server) for server in servers]
                for count in CLIENTS:
                    show(title, count, measure(addresses, packet(entries), count, options))
                if load == "trivial" and options.stock:
                    stock = [asked_by_processes(a, 16, options.seconds) for a in addresses[:2]]

    if stock:
        print("\n16 processes with KubeMo's client: calls/s of all, and of the one with the fewest")
    for who, calls in zip(names, stock, strict=False):
        fewest = min(calls) / options.seconds
        print(f"  {who:32}{sum(calls) / options.seconds:8.0f}{fewest:12.2f}")


def measure(
    addresses: list[Address], request: bytes, clients: int, options: argparse.Namespace
) -> list[list[Load]]:
    """Run the load on each, alternating: the speed of a virtual machine changes by the minute."""
    loads: list[list[Load]] = [[] for _ in addresses]
    seconds = options.seconds / options.rounds
    for _ in range(options.rounds):
        for address, rounds in zip(addresses, loads, strict=True):
            run_load(address, request, clients, 0.1 * seconds)
            rounds.append(run_load(address, request, clients, seconds))
    return loads


def ratio(ours: list[Load], theirs: list[Load]) -> float:
    """Return the median of the rounds' ratios.

    KubeMo's server may answer nothing in a round: its queue is so short that TCP drops connections
    and tries again after a second. That counts as one call.
    """
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(a.per_s / max(b.per_s, 1 / b.seconds) for a, b in pairs)


def show(title: str, clients: int, loads: list[list[Load]]) -> None:
    """Print rates and latencies of all rounds together, and the median of their ratios."""
    wholes = [Load() for _ in loads]
    for whole, rounds in zip(wholes, loads, strict=True):
        for each in rounds:
            whole.add(each)
    cells = [f"{whole.per_s:9.0f} ({whole.p50_s * 1e3:7.2f})" for whole in wholes]
    ratios = [f"{ratio(loads[0], other):.2f}" for other in loads[1:]]
    print(f"{title:26}{clients:8}" + "".join(f"{cell:>20}" for cell in cells), end="")
    print("   " + ", ".join(ratios), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "--serve-kubemo" in sys.argv:
        serve_kubemo(sys.argv[2])
    elif "--ask" in sys.argv:
        ask(*sys.argv[2:])
    else:
        main()
