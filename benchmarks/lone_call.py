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

So farm minus floor is the cost of the farm itself. Processor time and voluntary context switches
are counted by the kernel, for each process; function calls by the profiler, in a run of their own,
because counting them takes longer than the calls. `--profile` prints the functions of farm's front
door that take the most time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import signal
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

import farm
from evaluate import BODY, EXPECTED, MODEL, answers, free_port
from evaluate import __file__ as evaluate_file
from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.http.access import Access
from farm.http.server import HttpServer
from farm.model import Model
from farm.protocols.umbridge.endpoint import UmBridgeEndpoint
from farm.server.app import Router
from farm.transports.connection import read_connection
from farm.transports.stream.line import StreamLine
from farm.wire import messages as wire
from farm.worker.runner import Runner, timed
from machine import versions

PEERS = ("canned", "hop", "endpoint", "floor", "farm", "official")
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
    import select

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
        front = Router({"/Evaluate": endpoint}, cast(Any, None), Access(None))
        _, port = await HttpServer(front, port=0).start()
    print(port, flush=True)
    await asyncio.Event().wait()


class Counting:
    """Profiles this process between two SIGUSR1 and writes the result to the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profile: cProfile.Profile | None = None
        signal.signal(signal.SIGUSR1, self._toggle)

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
    """Everything measured at one server. used: by process, µs and context switches per call."""

    p50_us: list[float] = field(default_factory=list)
    calls: int = 0
    used: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, latencies_s: list[float], used: dict[str, tuple[float, float]]) -> None:
        self.p50_us.append(statistics.median(latencies_s) * 1e6)
        self.calls += len(latencies_s)
        for name, (cpu_us, switches) in used.items():
            before = self.used.get(name, (0.0, 0.0))
            self.used[name] = before[0] + cpu_us, before[1] + switches


class Caller:
    """One caller with a kept-alive connection, which waits for each answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = (
            f"POST /Evaluate HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        ).encode() + BODY

    def call(self, count: int) -> list[float]:
        """Return the seconds that each of so many calls took."""
        connection, request = self._socket, self._request
        took: list[float] = []
        for _ in range(count):
            start = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(65536)
            while EXPECTED not in answer:  # the official server sends head and body apart
                part = connection.recv(65536)
                if not part or len(answer) > 10_000:
                    raise RuntimeError(f"a wrong answer: {answer!r}")
                answer += part
            took.append(time.perf_counter() - start)
        return took


def processes(root: int) -> list[int]:
    """Return a process and its descendants, in the order of their starts."""
    parents: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (each / "stat").read_text()
                parents[int(each.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


def usage(pid: int) -> tuple[float, float]:
    """Return processor time in µs and voluntary context switches of all threads of a process."""
    cpu_us, switches = 0.0, 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            cpu_us += int((thread / "schedstat").read_text().split()[0]) / 1000
            status = (thread / "status").read_text()
            switches += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return cpu_us, switches


def program(pid: int) -> str:
    """Return what a process of farm is, by its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    for word in words:
        if word.startswith("farm."):
            return word
    return "server" if "--worker" not in words else "worker"


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[tuple[tuple[str, int], int]]:
    """Run a server for the duration of the block; yield its address and its process."""
    environment = {**os.environ, "COUNTED": str(folder / f"{kind}.profile")}
    if kind == "official":
        address = ("127.0.0.1", free_port())
        command = [sys.executable, evaluate_file, "--official", str(address[1])]
    else:
        command = [sys.executable, __file__, "--peer", kind, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            give_up = time.monotonic() + 60.0
            if kind == "official":
                while not answers(address):
                    time.sleep(0.05)
            elif kind == "farm":
                while (url := url_in(folder / "run")) is None or not has_worker(folder / "run"):
                    if process.poll() is not None or time.monotonic() > give_up:
                        raise RuntimeError("farm did not start")
                    time.sleep(0.05)
                host, _, port = url.removeprefix("http://").rpartition(":")
                address = (host, int(port))
            else:
                assert process.stdout is not None
                address = ("127.0.0.1", int(process.stdout.readline()))
            yield address, process.pid
        finally:
            process.terminate()


def url_in(run: Path) -> str | None:
    """Return the URL of the farm in a folder, once it has one."""
    with contextlib.suppress(farm.FarmError):
        return read_connection(run).url or None
    return None


def has_worker(run: Path) -> bool:
    """Whether the farm has a worker."""
    with farm.connect(run) as client:
        return bool(client.status()["workers"])


def counted(pid: int, caller: Caller, path: Path) -> pstats.Stats:
    """Return the profile of a server while it answers `COUNTED` calls."""
    done = path.with_name(f"{path.name}.done")
    os.kill(pid, signal.SIGUSR1)
    while not path.exists():
        time.sleep(0.01)
    caller.call(COUNTED)
    os.kill(pid, signal.SIGUSR1)
    while not done.exists():
        time.sleep(0.01)
    return pstats.Stats(str(done))


def measure(rounds: int, calls: int, peers: tuple[str, ...], folder: Path) -> SimpleNamespace:
    """Measure the servers in turn."""
    measured = {peer: Measured() for peer in peers}
    profiles: dict[str, pstats.Stats] = {}
    with contextlib.ExitStack() as stack:
        callers: dict[str, Caller] = {}
        pids: dict[str, int] = {}
        for peer in peers:
            address, pids[peer] = stack.enter_context(running(peer, folder))
            callers[peer] = Caller(address)
            callers[peer].call(500)
        names = {peer: {p: program(p) for p in processes(pids[peer])} for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                callers[peer].call(20)
                before = {pid: usage(pid) for pid in names[peer]}
                took = callers[peer].call(calls)
                used: dict[str, tuple[float, float]] = {}
                for pid, name in names[peer].items():
                    (cpu, switched), (cpu_then, then) = usage(pid), before[pid]
                    one = used.get(name, (0.0, 0.0))
                    used[name] = one[0] + cpu - cpu_then, one[1] + switched - then
                measured[peer].add(took, used)
        for peer in peers:
            if peer != "official":
                path = folder / f"{peer}.profile"
                profiles[peer] = counted(pids[peer], callers[peer], path)
    return SimpleNamespace(measured=measured, profiles=profiles)


def show(found: SimpleNamespace) -> None:
    """Print the tables."""
    measured: dict[str, Measured] = found.measured
    print(f"\n{'':10}{'p50 us':>8}{'calls':>8}  processor us (voluntary switches) per call")
    for peer, its in measured.items():
        profile = found.profiles.get(peer)
        functions = "" if profile is None else f"{profile.total_calls / COUNTED:.0f}"  # type: ignore[attr-defined]
        cells = [
            f"{name.removeprefix('farm.')} {cpu / its.calls:.0f} ({switches / its.calls:.1f})"
            for name, (cpu, switches) in its.used.items()
            if cpu / its.calls >= 1.0
        ]
        print(f"{peer:10}{p50(its):8.0f}{functions:>8}  {', '.join(cells)}")
    if {"farm", "floor"} <= measured.keys():
        print("\nfarm above floor, median of the rounds' differences: ", end="")
        rounds = zip(measured["farm"].p50_us, measured["floor"].p50_us, strict=True)
        print(f"{statistics.median(a - b for a, b in rounds):.0f} us", end="")
        cpu = [sum(c for c, _ in measured[p].used.values()) / measured[p].calls for p in CPU]
        print(f"; processor time {cpu[0] - cpu[1]:.0f} us")
    if {"farm", "official"} <= measured.keys():
        rounds = zip(measured["official"].p50_us, measured["farm"].p50_us, strict=True)
        print(f"official / farm, latency: {statistics.median(a / b for a, b in rounds):.2f}")


CPU = ("farm", "floor")


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
        command()
    else:
        print(versions("numpy", "uvloop", "httptools", "umbridge", "aiohttp"))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.py").write_text(MODEL)
            found = measure(options.rounds, options.calls, tuple(options.only), Path(folder))
            show(found)
            if options.profile:
                found.profiles["farm"].sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
