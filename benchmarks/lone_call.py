"""Where the time of a lone UM-Bridge call goes: latency, processor time, context switches, calls.

    make install && .venv/bin/python benchmarks/lone_call.py

One caller sends one request at a time over a kept-alive connection. Each server adds a part to the
one before it, and they take turns in one run:

    canned     uvloop and httptools: the same answer to each request
    hop        the same, but another process gives the answer, over a socketpair
    endpoint   farm's HTTP connection and UM-Bridge endpoint; the answer is the same each time
    floor      the same, with the model in another process: farm's messages, stream and runner
    farm       `farm serve` with one worker: the floor, and dispatcher, scheduler and worker host
    official   the official UM-Bridge server
    kserve, grpc, graphpipe, mip    the same farm by other protocols, MIP over a connection for each
               call; grpc is KServe's, with frames that are written once

So farm minus floor is the cost of the farm itself. Processor time and voluntary context switches
are counted by the kernel, for each process; function calls of the server by the profiler, in a run
of their own, because counting them takes longer than the calls. Turns of the loop that only wait
are not counted. `--profile` prints the functions of the front door that take the most time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pstats
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httptools
import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

import farm
from evaluate import __file__ as evaluate_file
from evaluate import answers, free_port
from farm.call import Call, ModelInfo, Result
from farm.encoding.json_numbers import NonFinite
from farm.http1.access import Access
from farm.http1.server import HttpServer
from farm.model import Model
from farm.protocols.interface import Endpoints
from farm.protocols.umbridge.endpoint import UmBridgeEndpoint
from farm.server.doors import Router
from farm.transports.stream.line import StreamLine
from farm.wire import messages as wire
from farm.worker.runner import Runner, timed
from machine import versions
from process_use import Use, difference, processes, use
from tests.support.lone_caller import (
    COUNTED,
    INFO,
    MODEL,
    PROTOCOLS,
    VARIABLE,
    Caller,
    Counting,
    FunctionCalls,
    counting_farm,
    profiled,
)

PEERS = ("canned", "hop", "endpoint", "floor", "farm", "official", *PROTOCOLS[1:])
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 19\r\n\r\n"
    b'{"output":[[10.0]]}'
)


# The servers, each in a process of its own


class Canned(asyncio.Protocol):
    """A connection on httptools; `ask` answers a request now or later."""

    def __init__(self, ask: Callable[[Canned, bytes], None]) -> None:
        self._ask = ask
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_message_complete(self) -> None:
        self._ask(self, self._body)


class Hop:
    """Passes bodies to another process and its answers back, one at a time."""

    def __init__(self) -> None:
        here = worker_of("hop")
        here.setblocking(False)
        self._socket = here
        asyncio.get_running_loop().add_reader(here.fileno(), self._answered)

    def ask(self, caller: Canned, body: bytes) -> None:
        self._caller = caller
        self._socket.send(body)

    def _answered(self) -> None:
        self._caller.transport.write(self._socket.recv(65536))


class Backend:
    """Stands for the dispatcher: answers each call with the same result, at once."""

    def start_call(self, call: Call, hints: object, on_done: Callable[[Any], None]) -> int:
        on_done(Result((np.array([10.0]),), 1e-6, worker="w"))
        return 0

    def cancel(self, task_id: int) -> None:
        raise AssertionError("no client of this benchmark leaves")

    def models(self) -> dict[str, ModelInfo]:
        return {INFO.name: INFO}

    def description(self, model: str, config: str = "") -> ModelInfo:
        return INFO


class Floor(Backend):
    """Sends each call to another process, in farm's own messages."""

    def __init__(self) -> None:
        self._line = StreamLine(worker_of("floor"))
        self._asking: dict[int, Callable[[Any], None]] = {}
        self._asked = 0
        asyncio.get_running_loop().add_reader(self._line.fileno(), self._answered)

    def start_call(self, call: Call, hints: object, on_done: Callable[[Any], None]) -> int:
        self._asked += 1
        self._asking[self._asked] = on_done
        self._line.send(wire.encode_calls([(self._asked, call)]))
        return self._asked

    def _answered(self) -> None:
        while (frames := self._line.receive()) is not None:
            for some in wire.decode_some_answers(wire.decode(frames)):
                for task_id, outcome in some:
                    self._asking.pop(task_id)(outcome)


def worker_of(kind: str) -> socket.socket:
    """Start the process that answers; return this end of a socketpair to it."""
    here, there = socket.socketpair()
    command = [sys.executable, __file__, "--worker", kind, str(there.fileno())]
    subprocess.Popen(command, pass_fds=[there.fileno()])
    there.close()
    return here


def work(kind: str, number: int) -> None:
    """Answer messages until the server ends."""
    there = socket.socket(fileno=number)
    if kind == "hop":
        while there.recv(65536):
            there.send(ANSWER)
        return
    model: dict[str, Any] = {}
    exec(compile(MODEL, "model.py", "exec"), model)  # the text that `farm serve` loads
    runner = Runner({"forward": cast(Model, model["forward"])})
    line = StreamLine(there)
    while not line.ended():
        frames = line.receive()
        if frames is None:
            socket_ready(line.fileno())
            continue
        tasks = wire.decode_calls(wire.decode(frames))[1]
        outcomes = runner.execute([call for _, call in tasks if isinstance(call, Call)])
        said = [o if isinstance(o, farm.FarmError) else timed(o, 0.0) for o in outcomes]
        line.send(wire.encode_answers([(i, o) for (i, _), o in zip(tasks, said, strict=True)]))


def socket_ready(descriptor: int) -> None:
    """Wait until the descriptor is readable."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()


async def serve(kind: str) -> None:
    """Serve `canned`, `hop`, `endpoint` or `floor`; print the port."""
    loop = asyncio.get_running_loop()
    if kind in ("canned", "hop"):
        ask = Hop().ask if kind == "hop" else lambda caller, _: caller.transport.write(ANSWER)
        server = await loop.create_server(lambda: Canned(ask), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
    else:
        backend = Floor() if kind == "floor" else Backend()
        endpoint = UmBridgeEndpoint(cast(Any, backend), non_finite=NonFinite.LITERAL)
        front = Router(Endpoints({"/Evaluate": endpoint}), Access(None))
        _, port = await HttpServer(front).start()
    print(port, flush=True)
    await asyncio.Event().wait()


# The load


@dataclass
class Measured:
    """Measurements of one server: the median of each round, and the sums of processor time."""

    p50_us: list[float] = field(default_factory=list)
    calls: int = 0
    used: Use = field(default_factory=dict)

    def add(self, latencies_s: list[float], used: Use) -> None:
        """Add a round."""
        self.p50_us.append(statistics.median(latencies_s) * 1e6)
        self.calls += len(latencies_s)
        for name, (cpu_us, switches) in used.items():
            before = self.used.get(name, (0.0, 0.0))
            self.used[name] = before[0] + cpu_us, before[1] + switches

    @property
    def cpu_us(self) -> float:
        """Processor time per call of all processes of the server."""
        return sum(cpu_us for cpu_us, _ in self.used.values()) / self.calls


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[tuple[dict[str, tuple[str, int]], int]]:
    """Run a server for the duration of the block; yield its peers' addresses and its process."""
    if kind == "farm":
        with counting_farm(folder) as it:
            yield it.addresses, it.pid
        return
    environment = {**os.environ, VARIABLE: str(folder / f"{kind}.profile")}
    command = [sys.executable, __file__, "--peer", kind]
    address = ("127.0.0.1", 0)
    if kind == "official":
        address = ("127.0.0.1", free_port())
        command = [sys.executable, evaluate_file, "--official", str(address[1])]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, stdout=pipe, stderr=quiet, text=True, env=environment
    ) as process:
        try:
            while kind == "official" and not answers(address):
                time.sleep(0.05)
            if kind != "official":
                assert process.stdout is not None
                address = ("127.0.0.1", int(process.stdout.readline()))
            yield {kind: address}, process.pid
        finally:
            process.terminate()


def measure(rounds: int, calls: int, peers: tuple[str, ...], folder: Path) -> SimpleNamespace:
    """Measure the servers in turn."""
    measured = {peer: Measured() for peer in peers}
    profiles: dict[str, pstats.Stats] = {}
    with contextlib.ExitStack() as stack:
        callers: dict[str, Caller] = {}
        roots: dict[str, int] = {}
        for kind in dict.fromkeys("farm" if peer in PROTOCOLS else peer for peer in peers):
            addresses, root = stack.enter_context(running(kind, folder))
            for peer, address in addresses.items():
                if peer in peers:
                    callers[peer], roots[peer] = Caller(peer, address), root
                    callers[peer].call(500)
        pids = {peer: processes(root) for peer, root in roots.items()}
        for _ in range(rounds):
            for peer in peers:
                callers[peer].call(20)
                before = use(pids[peer])
                took = callers[peer].call(calls)
                measured[peer].add(took, difference(use(pids[peer]), before))
        for peer in peers:
            if peer != "official":
                kind = "farm" if peer in PROTOCOLS else peer
                path = folder / f"{kind}.profile"
                profiles[peer] = profiled(roots[peer], callers[peer], path)
    return SimpleNamespace(measured=measured, profiles=profiles)


def show(found: SimpleNamespace) -> None:
    """Print the tables."""
    measured: dict[str, Measured] = found.measured
    print(f"\n{'':10}{'p50 us':>8}{'calls, own':>12}  processor us (voluntary switches) per call")
    for peer, its in measured.items():
        profile: Any = found.profiles.get(peer)
        functions = ""
        if profile is not None:
            calls = FunctionCalls.of(profile, COUNTED)
            functions = f"{calls.all:.0f} {calls.own:.0f}"
        cells = [
            f"{name} {cpu / its.calls:.0f} ({switches / its.calls:.1f})"
            for name, (cpu, switches) in its.used.items()
            if cpu / its.calls >= 1.0
        ]
        print(f"{peer:10}{p50(its):8.0f}{functions:>12}  {', '.join(cells)}")
    if {"farm", "floor"} <= measured.keys():
        print("\nfarm above floor, median of the rounds' differences: ", end="")
        rounds = zip(measured["farm"].p50_us, measured["floor"].p50_us, strict=True)
        print(f"{statistics.median(a - b for a, b in rounds):.0f} us", end="")
        print(f"; processor time {measured['farm'].cpu_us - measured['floor'].cpu_us:.0f} us")
    for theirs in ("official", "farm"):
        for mine in PROTOCOLS:
            if mine != theirs and {mine, theirs} <= measured.keys():
                rounds = zip(measured[theirs].p50_us, measured[mine].p50_us, strict=True)
                print(
                    f"{theirs} / {mine}, latency: {statistics.median(a / b for a, b in rounds):.2f}"
                )


def p50(its: Measured) -> float:
    """Return the median of the rounds' medians."""
    return statistics.median(its.p50_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=300, help="calls per round and server")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=PEERS, metavar="SERVER")
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], int(options.worker[1]))
    elif options.peer:
        Counting(os.environ[VARIABLE])
        uvloop.run(serve(options.peer))
    else:
        print(versions("numpy", "uvloop", "httptools", "umbridge", "aiohttp"))
        with tempfile.TemporaryDirectory() as folder:
            found = measure(options.rounds, options.calls, tuple(options.only), Path(folder))
            show(found)
            if options.profile:
                for peer in options.only:
                    if peer in PROTOCOLS:
                        print(f"\n{peer}")
                        found.profiles[peer].sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
