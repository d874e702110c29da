"""GraphPipe requests per second: farm beside the server of Oracle's Python package.

One run, one load generator, alternating servers, 1 and 16 callers; four numbers doubled, 100,000
(0.8 MB), and four by a model that takes 5 ms for each evaluation, on farm of up to 64 rows. Each
call has its own connection, as with Oracle's Python client; or connections are kept open, as with
its Go client. The package's server is that of its examples, `http.server` with its `convert`, which
answers one connection at a time; for persistent connections it has a thread for each. It runs in
its own environment and is left out if none is given:

    python3 -m venv /tmp/graphpipe
    /tmp/graphpipe/bin/pip install requests numpy flatbuffers==1.12
    /tmp/graphpipe/bin/pip install --no-deps graphpipe==1.0.4
    .venv/bin/python benchmarks/graphpipe_rates.py --graphpipe /tmp/graphpipe

With `--go GO`, the command of a Go toolchain, the run includes a server in Go, which reads and
writes only these messages (graphpipe_bare.go); Oracle's own server does more for each call. The
bare relay (bare.py) shows the cost of a hop to another process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import numpy as np

from bare import bare_server
from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.protocols.graphpipe.client import encode_call
from farm.protocols.graphpipe.codec import encode_result
from farm.transports.connection import read_connection
from http_load import Load, run_load
from machine import versions

CALLERS = (1, 16)
CASES = {
    "four numbers": ("double", 4),
    "four numbers, batched": ("batched", 4),
    "100,000 numbers": ("double", 100_000),
    "four numbers, 5 ms": ("slow", 4),
}
"""Model and size of each case."""
NUMBERS = ("four numbers", "four numbers, batched", "100,000 numbers")
FRESH = {case: (True,) if model == "slow" else (True, False) for case, (model, _) in CASES.items()}
"""Whether connections are new: sleeping threads do not represent a model that computes."""

START_S = 60.0

FARM = """
import time
import farm

class Double(farm.Model):
    name = "double"
    inputs = {"x": (-1,)}
    outputs = {"y": (-1,)}

    def evaluate(self, inputs, config):
        return 2.0 * inputs["x"]

class Batched(farm.Model):
    name = "batched"
    inputs = {"x": 4}
    outputs = {"y": 4}
    max_batch = 64

    def evaluate(self, inputs, config):
        return 2.0 * inputs["x"]

class Slow(farm.Model):
    name = "slow"
    inputs = {"x": 4}
    outputs = {"y": 4}
    max_batch = 64

    def evaluate(self, inputs, config):
        time.sleep(0.005)
        return 2.0 * inputs["x"]
"""

PEER = """
import sys, time
from http import server
from graphpipe import convert

class Handler(server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        asked = convert.deserialize_request(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/slow"):
            time.sleep(0.005)
        body = convert.serialize_infer_response([2.0 * asked.input_tensors[0]])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

Base = server.ThreadingHTTPServer if sys.argv[1] == "threads" else server.HTTPServer

class Server(Base):
    request_queue_size = 128

served = Server(("127.0.0.1", 0), Handler)
print(served.server_port, flush=True)
served.serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server; fresh: whether each call uses a new connection."""

    name: str
    address: tuple[str, int]
    fresh: Sequence[bool] = (True, False)
    cases: Sequence[str] = tuple(CASES)


INFO = ModelInfo("double", (TensorInfo("x", (-1,)),), (TensorInfo("y", (-1,)),))


def body_of(size: int) -> bytes:
    """Return the request for `size` numbers, all 1.5."""
    return encode_call(Call("double", Operation.EVALUATE, (np.full(size, 1.5),)), INFO)


def answer_to(size: int) -> bytes:
    """Return the answer to it, in HTTP."""
    body = encode_result(range(1), INFO, Result((np.full(size, 3.0),)))
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def farm_peer(folder: Path) -> Iterator[Peer]:
    """Run `farm serve` with one worker process."""
    (folder / "m.py").write_text(FARM)
    run = folder / "run"
    command = [sys.executable, "-m", "farm", "serve", "m.py:Double", "m.py:Batched", "m.py:Slow"]
    with _process([*command, "--port=0", f"--dir={run}"], folder):
        give_up = time.monotonic() + START_S
        while not (run / "farm.json").exists() or not read_connection(run).url:
            if time.monotonic() > give_up:
                raise RuntimeError("farm did not start")
            time.sleep(0.05)
        port = read_connection(run).url.rpartition(":")[2]
        yield Peer("farm", ("127.0.0.1", int(port)))


@contextlib.contextmanager
def python_peer(folder: Path, python: Path, kind: str) -> Iterator[Peer]:
    """Run the server of the Python package; kind: one connection at a time, or threads."""
    (folder / "peer.py").write_text(PEER)
    with _process([str(python), "peer.py", kind], folder) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        fresh = {"single": (True,), "threads": (False,)}[kind]
        yield Peer(f"graphpipe, {kind}", ("127.0.0.1", port), fresh)


@contextlib.contextmanager
def go_peer(folder: Path, go: str) -> Iterator[Peer]:
    """Run the server in Go."""
    source = Path(__file__).with_name("graphpipe_bare.go")
    subprocess.run([go, "build", "-o", str(folder / "bare"), str(source)], check=True)
    with _process([str(folder / "bare")], folder) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Peer("bare, in Go", ("127.0.0.1", port), cases=NUMBERS)


@contextlib.contextmanager
def relay_peer(case: str) -> Iterator[Peer]:
    """Run the bare relay, which has one answer."""
    with bare_server("relay", answer_to(CASES[case][1])) as address:
        yield Peer("bare relay", address, cases=(case,))


@contextlib.contextmanager
def _process(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=folder, stdout=PIPE, stderr=DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20.0)


Loads = dict[tuple[str, bool, str, int], Load]
"""Loads by case, fresh, peer and callers."""


def measure(peers: Sequence[Peer], names: Sequence[str], seconds: float, rounds: int) -> Loads:
    """Run all loads on all peers in turn: the speed of a virtual machine changes by the minute."""
    loads: Loads = {}
    cases = [(c, f, n) for c in names for f in FRESH[c] for n in CALLERS]
    for _ in range(rounds):
        for case, fresh, callers in cases:
            model, size = CASES[case]
            body, expected = body_of(size), np.full(4, 3.0).tobytes()
            for peer in peers:
                if fresh in peer.fresh and case in peer.cases:
                    load = run_load(
                        peer.address,
                        f"/graphpipe/{model}",
                        body,
                        callers=callers,
                        seconds=seconds / rounds,
                        fresh=fresh,
                        expected=expected,
                        headers="Accept: */*",
                    )
                    loads.setdefault((case, fresh, peer.name, callers), Load()).add(load)
    return loads


def show(loads: Loads, peers: Sequence[Peer], names: Sequence[str]) -> None:
    """Print tables of rates and median latencies, and of ratios."""
    for case in names:
        for fresh in FRESH[case]:
            title = f"{case}, {'fresh' if fresh else 'kept'} connections: /s (median ms)"
            print(f"\n{title:56}" + "".join(f"{c:>9} callers" for c in CALLERS))
            rows = {
                p.name: [loads[case, fresh, p.name, c] for c in CALLERS]
                for p in peers
                if fresh in p.fresh and case in p.cases
            }
            for name, row in rows.items():
                cells = "".join(f"{load.per_s:9.0f} ({load.p50_s * 1e3:5.2f})" for load in row)
                print(f"  {name:54}{cells}")
            for name, row in rows.items():
                if name != "farm":
                    pairs = zip(rows["farm"], row, strict=True)
                    cells = "".join(f"{a.per_s / b.per_s:17.2f}" for a, b in pairs)
                    print(f"  farm / {name:47}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphpipe", type=Path, help="virtual environment with graphpipe")
    parser.add_argument("--go", help="command of a Go toolchain")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3, help="turns into which it is divided")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    print(versions("numpy", "pyzmq", "uvloop"))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        peers = [stack.enter_context(farm_peer(folder))]
        if options.graphpipe:
            python = options.graphpipe / "bin" / "python"
            for kind in ("single", "threads"):
                peers.append(stack.enter_context(python_peer(folder, python, kind)))
        if options.go:
            peers.append(stack.enter_context(go_peer(folder, options.go)))
        relayed = [case for case in NUMBERS if case in options.cases]
        peers += [stack.enter_context(relay_peer(case)) for case in relayed]
        loads = measure(peers, options.cases, options.seconds, options.rounds)
        show(loads, peers, options.cases)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
