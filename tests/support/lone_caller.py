"""A farm and one caller that sends request after request; the front door's function calls.

Run as a program, it is that farm: `python -m tests.support.lone_caller FOLDER` serves the model in
FOLDER and counts its own function calls between two signals.
"""

from __future__ import annotations

import contextlib
import cProfile
import gc
import json
import os
import pstats
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import farm
from farm.call import Call, ModelInfo, Operation, TensorInfo
from farm.grpc.http2.frames import (
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
from farm.protocols.graphpipe.client import encode_call as encode_graphpipe
from farm.protocols.kserve.grpc.codec import messages
from farm.transports.connection import read_connection

PROTOCOLS = ("farm", "kserve", "grpc", "graphpipe", "mip")
"""UM-Bridge, KServe v2 by JSON, KServe v2 by gRPC, GraphPipe, MIP by a new connection each time."""

MODEL = """
import farm

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def forward(x):
    return x.sum()
"""
COUNTING = f"""
import os
import sys
from pathlib import Path

sys.path.insert(0, {str(Path(__file__).parent.parent.parent)!r})
from tests.support.lone_caller import Counting

Counting(str(Path(__file__).with_name("worker.profile")))
Path(__file__).with_name("worker.pid").write_text(str(os.getpid()))
"""
"""What a model's file also has if its worker counts its function calls."""

BODY = b'{"name": "forward", "input": [[1.0, 2.0, 3.0, 4.0]], "config": {}}'
EXPECTED = b"10.0"

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

OWN = os.path.join(os.path.dirname(farm.__file__), "")
"""The folder of farm's own functions."""

WAITS = frozenset({"_spin", "poll"})
"""The functions of front door and worker that wait without sleep."""

VARIABLE = "COUNTED"
"""The environment variable with the file that a counting program writes its profile to."""


class Counting:
    """Profiles this process between two SIGURG and writes the result to the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profile: cProfile.Profile | None = None
        signal.signal(signal.SIGURG, self._toggle)

    def _toggle(self, number: int, frame: object) -> None:
        if self._profile is None:
            gc.disable()
            self._profile = cProfile.Profile()
            self._profile.enable()
            Path(self._path).touch()
        else:
            self._profile.disable()
            self._profile.dump_stats(f"{self._path}.part")
            os.replace(f"{self._path}.part", f"{self._path}.done")
            self._profile = None
            gc.enable()


class FunctionCalls(NamedTuple):
    """Function calls for each request: all of them, and those of farm's own functions."""

    all: float
    own: float

    @classmethod
    def of(cls, profile: pstats.Stats, requests: int) -> FunctionCalls:
        """Return those of a profile, without those that only wait for what comes."""
        every = own = 0
        for (file, _, name), (_, count, _, _, callers) in profile.stats.items():  # type: ignore[attr-defined]  # not in the stubs
            waits = sum(n for (_, _, by), (_, n, _, _) in callers.items() if by in WAITS)
            count -= count if name in WAITS else waits
            every += count
            own += count if file.startswith(OWN) else 0
        return cls(every / requests, own / requests)


class Caller:
    """One caller, which waits for each answer."""

    def __init__(self, protocol: str, address: tuple[str, int]) -> None:
        self._address = address
        self._fresh = protocol == "mip"
        self._stream = 0  # of HTTP/2, the last one
        self._request, self._expected = request_to(protocol, address)
        self._socket = self._connect()
        if protocol == "grpc":
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
            self.send()
            self.receive()
            took.append(time.perf_counter() - start)
        return took

    def send(self) -> None:
        """Send a request."""
        if self._fresh:
            self._socket.close()
            self._socket = self._connect()
        request = self._request
        if self._stream:
            self._stream += 2
            request = of_stream(request, self._stream)
        self._socket.sendall(request)

    def receive(self) -> None:
        """Wait for the answer. Raises RuntimeError."""
        answer = self._socket.recv(65536)
        while self._expected not in answer:  # some servers send head and body apart
            part = self._socket.recv(65536)
            if not part or len(answer) > 10_000:
                raise RuntimeError(f"a wrong answer: {answer!r}")
            answer += part
        if self._fresh:
            self._socket.close()

    def close(self) -> None:
        """Close its connection."""
        self._socket.close()


class Callers:
    """Many callers on connections of their own; all send at once, then all wait for their answers.

    The front door is stopped while they send, so that it finds the same work in each round.
    """

    def __init__(self, protocol: str, counting: CountingFarm, number: int) -> None:
        self._pid = counting.pid
        self._callers = [Caller(protocol, counting.addresses[protocol]) for _ in range(number)]

    def call(self, count: int) -> None:
        """Make `count` calls in all, a multiple of the number of callers."""
        for _ in range(count // len(self._callers)):
            os.kill(self._pid, signal.SIGSTOP)
            for caller in self._callers:
                caller.send()
            os.kill(self._pid, signal.SIGCONT)
            for caller in self._callers:
                caller.receive()

    def close(self) -> None:
        """Close all connections."""
        for caller in self._callers:
            caller.close()


def request_to(protocol: str, address: tuple[str, int]) -> tuple[bytes, bytes]:
    """Return a request, and how its answer ends."""
    path, body, expected = "/Evaluate", BODY, EXPECTED
    if protocol == "grpc":
        return grpc_request(address, known=False), b"grpc-status"
    if protocol == "mip":
        value = b"[1.0,2.0,3.0,4.0]"
        payload = struct.pack("!2BH2L", 1, 0, 1, 2, len(value)) + value
        return struct.pack("!4BL", 0, 2, 0, 0, len(payload)) + payload, b"[10.0]"
    if protocol == "kserve":
        path, expected = "/v2/models/forward/infer", b"10.0"
        tensor = {"name": "x", "shape": [4], "datatype": "FP64", "data": [1.0, 2.0, 3.0, 4.0]}
        body = json.dumps({"inputs": [tensor]}).encode()
    elif protocol == "graphpipe":
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


class NativeCaller:
    """One caller of farm's own client, which waits for each answer."""

    def __init__(self, client: farm.Client) -> None:
        self._model = client.model("forward")

    def call(self, count: int) -> None:
        """Make so many calls."""
        for _ in range(count):
            self._model([1.0, 2.0, 3.0, 4.0])

    def profiled(self, requests: int) -> pstats.Stats:
        """Return the profile of this thread while it makes these calls."""
        profile = cProfile.Profile()
        gc.disable()
        profile.enable()
        self.call(requests)
        profile.disable()
        gc.enable()
        return pstats.Stats(profile)


class Mapper:
    """A caller of `map` of farm's own client, whose points are the rows of runs."""

    def __init__(self, client: farm.Client) -> None:
        self._model = client.model("forward")

    def call(self, count: int) -> None:
        """Evaluate so many points."""
        assert sum(1 for _ in self._model.map(np.ones((count, 4)))) == count


def profiled(
    pid: int, caller: Caller | Callers | NativeCaller | Mapper, path: Path, requests: int = COUNTED
) -> pstats.Stats:
    """Return the profile of a `Counting` process while it answers these requests."""
    done = path.with_name(f"{path.name}.done")
    os.kill(pid, signal.SIGURG)
    while not path.exists():
        time.sleep(0.01)
    caller.call(requests)
    os.kill(pid, signal.SIGURG)
    while not done.exists():
        time.sleep(0.01)
    profile = pstats.Stats(str(done))
    done.unlink()
    path.unlink()
    return profile


class CountingFarm(NamedTuple):
    """A farm with one worker: its run folder and process, and its address for each protocol.

    profile, worker_profile: the files that front door and worker write.
    """

    run: Path
    pid: int
    addresses: dict[str, tuple[str, int]]
    profile: Path
    worker: int
    worker_profile: Path


@contextlib.contextmanager
def counting_farm(folder: Path) -> Iterator[CountingFarm]:
    """Run a farm that counts its function calls, as its worker does."""
    (folder / "model.py").write_text(COUNTING + MODEL)
    profile = folder / "farm.profile"
    environment = {**os.environ, VARIABLE: str(profile)}
    command = [sys.executable, "-m", "tests.support.lone_caller", str(folder)]
    pipe, root = subprocess.PIPE, Path(__file__).parent.parent.parent
    with subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=root
    ) as process:
        try:
            run = folder / "run"
            addresses = _addresses(process, run)
            worker = int((folder / "worker.pid").read_text())
            there = folder / "worker.profile"
            yield CountingFarm(run, process.pid, addresses, profile, worker, there)
        finally:
            process.terminate()


def _addresses(process: subprocess.Popen[str], run: Path) -> dict[str, tuple[str, int]]:
    """Return the address for each protocol, once the farm has a worker."""
    assert process.stdout is not None
    mip = next(line for line in process.stdout if line.startswith("MIP for"))
    with farm.connect(run) as client:
        client.model("forward")([1.0, 2.0, 3.0, 4.0])
    host, _, port = read_connection(run).url.removeprefix("http://").rpartition(":")
    addresses = dict.fromkeys(PROTOCOLS, (host, int(port)))
    grpc_port = int(read_connection(run).grpc.rpartition(":")[2])
    return addresses | {
        "grpc": ("127.0.0.1", grpc_port),
        "mip": ("127.0.0.1", int(mip.rpartition(":")[2])),
    }


def main(folder: str) -> None:
    """Serve the model in a folder, and count."""
    from farm.cli import main as command

    Counting(os.environ[VARIABLE])
    model, run = str(Path(folder) / "model.py"), str(Path(folder) / "run")
    sys.argv = ["farm", "serve", model, "--port", "0", "--workers", "1", "--dir", run]
    sys.argv += ["--mip", "127.0.0.1:0", "--grpc-port", "0"]
    command()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1])
