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
are counted, too. `--profile` prints the functions of the front door that take the most time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import pstats
import select
import signal
import socket
import statistics
import struct
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

import farm
from evaluate import BODY, EXPECTED, MODEL, answers, free_port
from evaluate import __file__ as evaluate_file
from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.grpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_WINDOW,
    LONG,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    literal,
)
from farm.grpc.messages import framed
from farm.http.access import Access
from farm.http.server import HttpServer
from farm.model import Model
from farm.protocols.graphpipe.client import encode_call as encode_graphpipe
from farm.protocols.kserve.grpc.codec import messages
from farm.protocols.site import Endpoints
from farm.protocols.umbridge.endpoint import UmBridgeEndpoint
from farm.server.doors import Router
from farm.transports.connection import read_connection
from farm.transports.stream.line import StreamLine
from farm.wire import messages as wire
from farm.worker.runner import Runner, timed
from machine import versions
from process_use import Use, difference, processes, use

OF_FARM = ("farm", "kserve", "grpc", "graphpipe", "mip")
"""Those that are one farm."""
PEERS = ("canned", "hop", "endpoint", "floor", "farm", "official", *OF_FARM[1:])
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 19\r\n\r\n"
    b'{"output":[[10.0]]}'
)
INFO = ModelInfo(
    "forward",
    (TensorInfo("x", (4,)),),
    (TensorInfo("y", (1,)),),
    operations=frozenset({Operation.EVALUATE}),
)
GREETING = (
    PREFACE
    + frame(SETTINGS, 0, 0)
    + frame(WINDOW_UPDATE, 0, 0, LONG.pack(LARGEST_WINDOW // 2))  # for all answers of the run
)
COUNTED = 500
"""Calls whose function calls are counted."""


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


class Counting:
    """Profiles this process between two SIGURG and writes the result to the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profile: cProfile.Profile | None = None
        signal.signal(signal.SIGURG, self._toggle)

    def _toggle(self, number: int, frame: object) -> None:
        if self._profile is None:
            self._profile = cProfile.Profile()
            self._profile.enable()
            Path(self._path).touch()
        else:
            self._profile.disable()
            self._profile.dump_stats(f"{self._path}.part")
            os.replace(f"{self._path}.part", f"{self._path}.done")
            self._profile = None


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


class Caller:
    """One caller, which waits for each answer."""

    def __init__(self, peer: str, address: tuple[str, int]) -> None:
        self._address = address
        self._fresh = peer == "mip"
        self._stream = 0  # of HTTP/2, the last one
        self._request, self._expected = request_to(peer, address)
        self._socket = self._connect()
        if peer == "grpc":
            first, self._request = self._request, grpc_request(address, known=True)
            self._socket.sendall(GREETING + of_stream(first, 1))
            while self._expected not in self._socket.recv(65536):
                pass
            self._stream = 1

    def _connect(self) -> socket.socket:
        connected = socket.create_connection(self._address)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def call(self, count: int) -> list[float]:
        """Return the latencies of `count` calls in seconds. Raises RuntimeError."""
        took: list[float] = []
        for _ in range(count):
            start = time.perf_counter()
            connection = self._connect() if self._fresh else self._socket
            request = self._request
            if self._stream:
                self._stream += 2
                request = of_stream(request, self._stream)
            connection.sendall(request)
            answer = connection.recv(65536)
            while self._expected not in answer:  # some servers send head and body apart
                part = connection.recv(65536)
                if not part or len(answer) > 10_000:
                    raise RuntimeError(f"a wrong answer: {answer!r}")
                answer += part
            took.append(time.perf_counter() - start)
            if self._fresh:
                connection.close()
        return took


def request_to(peer: str, address: tuple[str, int]) -> tuple[bytes, bytes]:
    """Return a request, and how its answer ends."""
    path, body, expected = "/Evaluate", BODY, EXPECTED
    if peer == "grpc":
        return grpc_request(address, known=False), b"grpc-status"
    if peer == "mip":
        value = b"[1.0,2.0,3.0,4.0]"
        payload = struct.pack("!2BH2L", 1, 0, 1, 2, len(value)) + value
        return struct.pack("!4BL", 0, 2, 0, 0, len(payload)) + payload, b"[10.0]"
    if peer == "kserve":
        path, expected = "/v2/models/forward/infer", b"10.0"
        tensor = {"name": "x", "shape": [4], "datatype": "FP64", "data": [1.0, 2.0, 3.0, 4.0]}
        body = json.dumps({"inputs": [tensor]}).encode()
    elif peer == "graphpipe":
        path, expected = "/graphpipe/forward", np.array([10.0]).tobytes()
        body = encode_graphpipe(Call("forward", Operation.EVALUATE, (np.arange(1.0, 5.0),)), INFO)
    head = f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body, expected


def grpc_request(address: tuple[str, int], *, known: bool) -> bytes:
    """Return the frames of one ModelInfer, for stream 0.

    known: whether an earlier request has put the headers into the server's table, as gRPC does.
    """
    asked = messages()["inference.ModelInferRequest"](model_name="forward")
    asked.inputs.add(name="x", datatype="FP64", shape=[4])
    asked.raw_input_contents.append(np.arange(1.0, 5.0).tobytes())
    block = b"\x83\x86"  # POST and http, from HPACK's own table
    headers = (
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", f"{address[0]}:{address[1]}".encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    for number, (name, value) in enumerate(headers):
        # The newest entry of the table has index 62.
        block += bytes([0x80 | 65 - number]) if known else b"\x40" + literal(name, value)[1:]
    body = b"".join(framed(asked.SerializeToString()))
    return frame(HEADERS, END_HEADERS, 0, block) + frame(DATA, END_STREAM, 0, body)


def of_stream(frames: bytes, stream: int) -> bytes:
    """Return a request's two frames for this stream."""
    number, second = stream.to_bytes(4, "big"), 9 + int.from_bytes(frames[:3], "big")
    return frames[:5] + number + frames[9 : second + 5] + number + frames[second + 9 :]


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[tuple[dict[str, tuple[str, int]], int]]:
    """Run a server for the duration of the block; yield its peers' addresses and its process."""
    environment = {**os.environ, "COUNTED": str(folder / f"{kind}.profile")}
    command = [sys.executable, __file__, "--peer", kind, str(folder)]
    address = ("127.0.0.1", 0)
    if kind == "official":
        address = ("127.0.0.1", free_port())
        command = [sys.executable, evaluate_file, "--official", str(address[1])]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, stdout=pipe, stderr=quiet, text=True, env=environment
    ) as process:
        try:
            if kind == "farm":
                yield farm_addresses(process, folder / "run"), process.pid
                return
            while kind == "official" and not answers(address):
                time.sleep(0.05)
            if kind != "official":
                assert process.stdout is not None
                address = ("127.0.0.1", int(process.stdout.readline()))
            yield {kind: address}, process.pid
        finally:
            process.terminate()


def farm_addresses(process: subprocess.Popen[str], run: Path) -> dict[str, tuple[str, int]]:
    """Return the address for each protocol, once the farm has a worker."""
    assert process.stdout is not None
    mip = next(line for line in process.stdout if line.startswith("MIP for"))
    with farm.connect(run) as client:
        client.model("forward")([1.0, 2.0, 3.0, 4.0])
    host, _, port = read_connection(run).url.removeprefix("http://").rpartition(":")
    addresses = dict.fromkeys(OF_FARM, (host, int(port)))
    grpc_port = int(read_connection(run).grpc.rpartition(":")[2])
    return addresses | {
        "grpc": ("127.0.0.1", grpc_port),
        "mip": ("127.0.0.1", int(mip.rpartition(":")[2])),
    }


def counted(pid: int, caller: Caller, path: Path) -> pstats.Stats:
    """Return the profile of a server while it answers `COUNTED` calls."""
    done = path.with_name(f"{path.name}.done")
    os.kill(pid, signal.SIGURG)
    while not path.exists():
        time.sleep(0.01)
    caller.call(COUNTED)
    os.kill(pid, signal.SIGURG)
    while not done.exists():
        time.sleep(0.01)
    profile = pstats.Stats(str(done))
    done.unlink()
    path.unlink()
    return profile


def measure(rounds: int, calls: int, peers: tuple[str, ...], folder: Path) -> SimpleNamespace:
    """Measure the servers in turn."""
    measured = {peer: Measured() for peer in peers}
    profiles: dict[str, pstats.Stats] = {}
    with contextlib.ExitStack() as stack:
        callers: dict[str, Caller] = {}
        roots: dict[str, int] = {}
        for kind in dict.fromkeys("farm" if peer in OF_FARM else peer for peer in peers):
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
                kind = "farm" if peer in OF_FARM else peer
                path = folder / f"{kind}.profile"
                profiles[peer] = counted(roots[peer], callers[peer], path)
    return SimpleNamespace(measured=measured, profiles=profiles)


def show(found: SimpleNamespace) -> None:
    """Print the tables."""
    measured: dict[str, Measured] = found.measured
    print(f"\n{'':10}{'p50 us':>8}{'calls':>8}  processor us (voluntary switches) per call")
    for peer, its in measured.items():
        profile: Any = found.profiles.get(peer)
        functions = "" if profile is None else f"{profile.total_calls / COUNTED:.0f}"
        cells = [
            f"{name} {cpu / its.calls:.0f} ({switches / its.calls:.1f})"
            for name, (cpu, switches) in its.used.items()
            if cpu / its.calls >= 1.0
        ]
        print(f"{peer:10}{p50(its):8.0f}{functions:>8}  {', '.join(cells)}")
    if {"farm", "floor"} <= measured.keys():
        print("\nfarm above floor, median of the rounds' differences: ", end="")
        rounds = zip(measured["farm"].p50_us, measured["floor"].p50_us, strict=True)
        print(f"{statistics.median(a - b for a, b in rounds):.0f} us", end="")
        print(f"; processor time {measured['farm'].cpu_us - measured['floor'].cpu_us:.0f} us")
    for theirs in ("official", "farm"):
        for mine in OF_FARM:
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
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], int(options.worker[1]))
    elif options.peer:
        kind, folder = options.peer
        Counting(os.environ["COUNTED"])
        if kind != "farm":
            uvloop.run(serve(kind))
            return
        from farm.cli import main as command

        model, run = str(Path(folder) / "model.py"), str(Path(folder) / "run")
        sys.argv = ["farm", "serve", model, "--port", "0", "--workers", "1", "--dir", run]
        sys.argv += ["--mip", "127.0.0.1:0", "--grpc-port", "0"]
        command()
    else:
        print(versions("numpy", "uvloop", "httptools", "umbridge", "aiohttp"))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.py").write_text(MODEL)
            found = measure(options.rounds, options.calls, tuple(options.only), Path(folder))
            show(found)
            if options.profile:
                for peer in options.only:
                    if peer in OF_FARM:
                        print(f"\n{peer}")
                        found.profiles[peer].sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
