"""MIP: calls per second of farm and of KubeMo's own server, one run, one load generator.

    python benchmarks/mip.py

Each call has its own connection, as with KubeMo's client; the servers alternate. Three loads: a
trivial model, a model that takes 5 ms, and packets of 1,000 entries; 1 and 16 clients at once. Two
minimal servers (bare.py) show the upper limit for the same loads: one answers itself, the other
lets another process answer over ZeroMQ, as farm does with a model.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import selectors
import socket
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

from bare import bare_server
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
Address = tuple[str, int]


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
        self.begin()

    def begin(self) -> None:
        """Connect; a server whose queue is full delays its other clients, not this one."""
        self.began_at = time.perf_counter()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.connect_ex(self._address)
        self._answer = bytearray()
        self._unsent = memoryview(self._request)
        try:  # on one machine a connection is made at once, as KubeMo's client finds it
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
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
        self._selector.unregister(self._socket)
        self._socket.close()


def run_load(address: Address, request: bytes, clients: int, seconds: float) -> Load:
    """Run `clients` clients at once for `seconds`."""
    load = Load()
    with selectors.DefaultSelector() as selector:
        start = time.perf_counter()
        callers = [Caller(address, request, selector) for _ in range(clients)]
        while (now := time.perf_counter()) - start < seconds:
            for key, _ in selector.select(0.1):
                caller: Caller = key.data
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


def serve_kubemo() -> None:
    server = kubemo.Server("tcp", ("127.0.0.1", 0))
    server.handle(kubemo.InferenceHandler(KubemoDouble()))
    print(server.socket.getsockname()[1], flush=True)
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
def kubemo_server(folder: Path, kind: str) -> Iterator[Address]:
    command = (sys.executable, str(Path(__file__).resolve()), "--serve-kubemo", kind)
    with process(*command, cwd=folder) as running:
        assert running.stdout is not None
        yield "127.0.0.1", int(running.stdout.readline())


@contextlib.contextmanager
def farm_server(folder: Path, kind: str) -> Iterator[Address]:
    (folder / "model.py").write_text(FARM_MODEL)
    workers = WORKERS if kind == "slow" else 2
    model = "model.py:Slow" if kind == "slow" else "model.py:Double"
    command = [sys.executable, "-m", "farm", "serve", model, "-n", str(workers), "--port", "0"]
    command += ["--mip", "127.0.0.1:0", "--dir", str(folder / f"run-{kind}")]
    with process(*command, cwd=folder) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("MIP for"):
                time.sleep(0.2 * workers)  # time for the other workers to start
                yield "127.0.0.1", int(line.rpartition(":")[2])
                return
        raise RuntimeError("farm serve ended")


LOADS = {
    "trivial model": ("trivial", 1, CLIENTS),
    "model of 5 ms": ("slow", 1, CLIENTS),
    f"packets of {ENTRIES} entries": ("trivial", ENTRIES, CLIENTS),
}


def ask(port: str, seconds: str) -> None:
    """Call with KubeMo's own client for `seconds`, after a line says go; print how many calls."""
    client, answered = kubemo.Client(), 0
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.perf_counter() + float(seconds)
    while time.perf_counter() < end:
        value = kubemo.Json(io.BytesIO(json.dumps(list(range(SIZE))).encode()))
        ((answer,),) = client.inference(f"tcp://127.0.0.1:{port}", ((value,),))
        if answer.decode() != [2.0 * k for k in range(SIZE)]:
            raise RuntimeError("a wrong answer")
        answered += 1
    print(answered, flush=True)


def asked_by_processes(address: Address, count: int, seconds: float) -> list[int]:
    """Return the calls of `count` processes, each with KubeMo's own client."""
    own = (sys.executable, str(Path(__file__).resolve()), "--ask", str(address[1]), str(seconds))
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
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3, help="turns into which it is divided")
    options = parser.parse_args()
    print(versions("numpy", "kubemo", "uvloop"))
    print(f"\n{'calls/s (median ms)':34}{'clients':>8}", end="")
    print("".join(f"{name:>20}" for name in ("farm", "kubemo", "bare relay", "bare echo")), end="")
    print("   times kubemo's")
    with tempfile.TemporaryDirectory() as name:
        for title, (kind, entries, clients) in LOADS.items():
            with contextlib.ExitStack() as stack:
                servers = [farm_server(Path(name), kind), kubemo_server(Path(name), kind)]
                if kind != "slow":
                    answer = packet(entries, answer=True)
                    servers += [bare_server(bare, answer) for bare in ("relay", "echo")]
                addresses = [stack.enter_context(server) for server in servers]
                for count in clients:
                    show(title, count, measure(addresses, packet(entries), count, options))
                if title == "trivial model":
                    stock = [asked_by_processes(a, 16, options.seconds) for a in addresses[:2]]

    print("\n16 processes with KubeMo's client: calls/s of all, and of the one with the fewest")
    for who, calls in zip(("farm", "kubemo"), stock, strict=True):
        fewest = min(calls) / options.seconds
        print(f"  {who:32}{sum(calls) / options.seconds:8.0f}{fewest:12.2f}")


def measure(
    addresses: list[Address], request: bytes, clients: int, options: argparse.Namespace
) -> list[Load]:
    """Run the load on each, alternating: the speed of a virtual machine changes by the minute."""
    loads = [Load() for _ in addresses]
    seconds = options.seconds / options.rounds
    for _ in range(options.rounds):
        for address, load in zip(addresses, loads, strict=True):
            run_load(address, request, clients, 0.1 * seconds)
            load.add(run_load(address, request, clients, seconds))
    return loads


def show(title: str, clients: int, loads: list[Load]) -> None:
    cells = [f"{load.per_s:9.0f} ({load.p50_s * 1e3:7.2f})" for load in loads]
    ratios = [f"{load.per_s / loads[1].per_s:.2f}" for load in (loads[0], *loads[2:])]
    print(f"{title:34}{clients:8}" + "".join(f"{cell:>20}" for cell in cells), end="")
    print("   " + ", ".join(ratios), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "--serve-kubemo" in sys.argv:
        serve_kubemo()
    elif "--ask" in sys.argv:
        ask(*sys.argv[2:])
    else:
        main()
