"""Large arrays there and back: farm beside the official UM-Bridge server and a bare relay.

One caller, one worker and a model that returns its input, everything in one alternating run:

    make install && .venv/bin/python benchmarks/arrays.py

UM-Bridge's JSON is compared with the official Python server. The native client and KServe's binary
form are compared with a bare relay, which moves the same bytes over the same kinds of sockets:
client, relay process, worker process and back. It parses lengths only, and reads each message
whole into memory that it uses again. A second relay passes descriptors of files in memory instead
of the bytes; it shows whether that pays between the processes of one machine. The processor time of
farm's front door, worker and readers per call is printed as well, because wall-clock times of a
busy machine say little.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import orjson
import umbridge

import farm
from evaluate import free_port, process
from farm.machine.memory_file import append, new_file
from farm.transports.connection import read_connection
from machine import versions

SIZES = (100, 10_000, 100_000, 1_000_000)

A_MODEL = """
@farm.model(inputs={{"x": {0}}}, outputs={{"y": {0}}})
def echo{0}(x):
    return x
"""

LENGTH = struct.Struct("<Q")
Ask = Callable[[], None]


class Echo(umbridge.Model):  # type: ignore[misc]  # published without types
    """The same model for the official server."""

    def __init__(self, size: int) -> None:
        super().__init__(f"echo{size}")
        self.size = size

    def get_input_sizes(self, config: object) -> list[int]:
        return [self.size]

    def get_output_sizes(self, config: object) -> list[int]:
        return [self.size]

    def __call__(self, parameters: list[list[float]], config: object) -> list[list[float]]:
        return parameters

    def supports_evaluate(self) -> bool:
        return True


class Http:
    """One kept connection to a server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._memory = memoryview(bytearray(64 << 20))

    def ask(self, path: str, body: bytes, headers: str = "") -> memoryview:
        """Return the body of the answer to a POST."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        self._socket.sendall(f"{head}{headers}\r\n".encode() + body)
        filled = whole = at = 0
        while not whole or filled < whole:
            count = self._socket.recv_into(self._memory[filled:])
            if not count:
                raise RuntimeError("the server hung up")
            filled += count
            if (
                not whole
                and (end := bytes(self._memory[: min(filled, 4096)]).find(b"\r\n\r\n")) > 0
            ):
                lines = bytes(self._memory[:end]).lower().split(b"\r\n")
                length = next(n for n in lines if n.startswith(b"content-length:"))
                at = end + 4
                whole = at + int(length[15:])
        if not bytes(self._memory[:12]).endswith(b" 200"):
            raise RuntimeError(bytes(self._memory[:500]))
        return self._memory[at:whole]


# The bare relay


def receive(connected: socket.socket, memory: memoryview) -> int:
    """Read a message, its length first; return that length, 0 at the end."""
    head = connected.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        return 0
    (size,) = LENGTH.unpack(head)
    filled = 0
    while filled < size:
        filled += connected.recv_into(memory[filled:size])
    return int(size)


def send(connected: socket.socket, message: memoryview) -> None:
    """Write a message, its length first."""
    connected.sendall(LENGTH.pack(len(message)))
    connected.sendall(message)


def relay(client: socket.socket, worker: socket.socket | None) -> None:
    """Pass messages on to the worker and its answers back; without one, be the worker."""
    memory = memoryview(bytearray(64 << 20))
    while size := receive(client, memory):
        if worker is not None:
            send(worker, memory[:size])
            size = receive(worker, memory)
        send(client, memory[:size])


def send_file(connected: socket.socket, message: memoryview) -> None:
    """Write a message to a new file in memory and pass its descriptor on."""
    descriptor = new_file()
    append(descriptor, message)
    pass_on(connected, descriptor)


def pass_on(connected: socket.socket, descriptor: int) -> None:
    """Send a descriptor and close it here."""
    socket.send_fds(connected, [b"."], [descriptor])
    os.close(descriptor)


def receive_file(connected: socket.socket) -> int:
    """Return the next descriptor, or -1 at the end."""
    _, descriptors, _, _ = socket.recv_fds(connected, 1, 1)
    return descriptors[0] if descriptors else -1


def read_file(descriptor: int, memory: memoryview) -> int:
    """Copy a file into memory and close it; return its size."""
    size, filled = os.fstat(descriptor).st_size, 0
    while filled < size:
        filled += os.preadv(descriptor, [memory[filled:size]], filled)
    os.close(descriptor)
    return size


def relay_files(client: socket.socket, worker: socket.socket | None) -> None:
    """Do what `relay` does with descriptors in place of bytes."""
    memory = memoryview(bytearray(64 << 20))
    while (descriptor := receive_file(client)) >= 0:
        if worker is not None:
            pass_on(worker, descriptor)
            pass_on(client, receive_file(worker))
        else:
            send_file(client, memory[: read_file(descriptor, memory)])


def relay_main(kind: str, first: int, second: int) -> None:
    """Run one of the relay's two processes on sockets that it has inherited."""
    client = socket.socket(fileno=first)
    run = relay_files if kind.endswith("files") else relay
    run(client, socket.socket(fileno=second) if kind.startswith("relay") else None)


@contextlib.contextmanager
def bare_relay(family: str) -> Iterator[socket.socket]:
    """Run relay and worker; yield the client's socket. family: "unix", "tcp" or "files"."""
    if family == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            relays, _ = listener.accept()
        for at_end in (client, relays):
            at_end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        client, relays = socket.socketpair()
    to_worker, workers = socket.socketpair()
    program = [sys.executable, __file__, "--relay"]
    inner = (relays.fileno(), to_worker.fileno())
    end = "-files" if family == "files" else ""
    with (
        client,
        subprocess.Popen([*program, f"relay{end}", *map(str, inner)], pass_fds=inner) as first,
        subprocess.Popen(
            [*program, f"worker{end}", str(workers.fileno()), "0"], pass_fds=(workers.fileno(),)
        ) as second,
    ):
        for inherited in (relays, to_worker, workers):
            inherited.close()
        try:
            yield client
        finally:
            first.terminate()
            second.terminate()


def relayed(client: socket.socket, message: bytes, memory: memoryview) -> Ask:
    """Return a function that sends a message and waits for its copy."""
    view = memoryview(message)

    def ask() -> None:
        send(client, view)
        if receive(client, memory) != len(view):
            raise RuntimeError("the relay lost bytes")

    return ask


def relayed_as_file(client: socket.socket, message: bytes, memory: memoryview) -> Ask:
    """Return a function that does the same with files in memory."""
    view = memoryview(message)

    def ask() -> None:
        send_file(client, view)
        if read_file(receive_file(client), memory) != len(view):
            raise RuntimeError("the relay lost bytes")

    return ask


# Processor time


def ticks(pid: int) -> float:
    """Return the processor time of a process in milliseconds."""
    total = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(stat.read_text().split()[0])
    return total / 1e6


def family_of(pid: int) -> dict[str, list[int]]:
    """Return the processes of a farm by their role; pid: the front door."""
    found: dict[str, list[int]] = {"front door": [pid], "worker": [], "reader": []}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents = [int(stat.parent.name)]
            while parents[-1] not in (0, 1, pid):
                text = Path(f"/proc/{parents[-1]}/stat").read_text()
                parents.append(int(text.rpartition(")")[2].split()[1]))
            if parents[-1] == pid and parents[0] != pid:
                command = (stat.parent / "cmdline").read_bytes()
                kind = "reader" if b"farm.bodies.reader" in command else "worker"
                found[kind].append(parents[0])
    return found


class Case:
    """One way to move the numbers: its times, and the processor time it cost the farm."""

    def __init__(self, name: str, ask: Ask, pid: int | None = None) -> None:
        self.name = name
        self.times: list[float] = []
        self.cpu: dict[str, float] = {}
        self._ask = ask
        self._pid = pid

    def measure(self, calls: int) -> None:
        """Make a few calls, and note each one's duration."""
        self._ask()
        family = {} if self._pid is None else family_of(self._pid)
        before = {kind: sum(map(ticks, pids)) for kind, pids in family.items()}
        for _ in range(calls):
            start = time.perf_counter()
            self._ask()
            self.times.append(time.perf_counter() - start)
        for kind, pids in family.items():
            used = sum(map(ticks, pids)) - before[kind]
            self.cpu[kind] = self.cpu.get(kind, 0.0) + used

    def told(self) -> str:
        """Return the median, the best, and the processor time per call."""
        used = ", ".join(f"{kind} {ms / len(self.times):.2f}" for kind, ms in self.cpu.items())
        return (
            f"{self.name:28} {1e3 * statistics.median(self.times):9.2f} ms, best "
            f"{1e3 * min(self.times):9.2f}{'; processor ms a call: ' if used else ''}{used}"
        )


def cases(size: int, run: Path, address: tuple[str, int], client: farm.Client) -> Iterator[Case]:
    """Yield every way to send `size` doubles there and back."""
    values = np.random.default_rng(1).standard_normal(size)
    raw = values.tobytes()
    host, _, port = read_connection(run).url.removeprefix("http://").rpartition(":")
    pid = FRONT_DOOR[0]
    body = orjson.dumps(
        {"name": f"echo{size}", "input": [values], "config": {}}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    ours, official = Http((host, int(port))), Http(address)

    def json(server: Http) -> Ask:
        answer = orjson.loads(bytes(server.ask("/Evaluate", body)))
        if not np.array_equal(answer["output"][0], values):
            raise RuntimeError("the numbers have changed on their way")
        return lambda: server.ask("/Evaluate", body).release()

    yield Case("UM-Bridge, farm", json(ours), pid)
    yield Case("UM-Bridge, official server", json(official))

    call = farm.Call(f"echo{size}", farm.Operation.EVALUATE, (values,))

    def native() -> None:
        if client.submit(call).result().outputs[0].nbytes != len(raw):
            raise RuntimeError("numbers are missing")

    yield Case("native client", native, pid)

    tensor = {"name": "x", "shape": [size], "datatype": "FP64"}
    header = orjson.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}],
            "parameters": {"binary_data_output": True},
        }
    )
    length = f"Inference-Header-Content-Length: {len(header)}\r\n"
    binary = header + raw
    path = f"/v2/models/echo{size}/infer"
    if bytes(ours.ask(path, binary, length)[-len(raw) :]) != raw:
        raise RuntimeError("the numbers have changed on their way")
    yield Case("KServe binary", lambda: ours.ask(path, binary, length).release(), pid)
    yield Case("KServe in shared memory", in_shared_memory(ours, path, values), pid)


def in_shared_memory(server: Http, path: str, values: np.ndarray) -> Ask:
    """Return a function that puts the numbers into a region and reads them from another one."""
    size = values.nbytes
    memory = SharedMemory(create=True, size=2 * size)
    atexit.register(memory.unlink)
    name = memory.name.lstrip("/")
    region = orjson.dumps({"key": f"/{name}", "byte_size": 2 * size})
    server.ask(f"/v2/systemsharedmemory/region/{name}/register", region).release()
    places = [
        {"shared_memory_region": name, "shared_memory_byte_size": size, "shared_memory_offset": at}
        for at in (0, size)
    ]
    x = {"name": "x", "shape": [len(values)], "datatype": "FP64", "parameters": places[0]}
    body = orjson.dumps({"inputs": [x], "outputs": [{"name": "y", "parameters": places[1]}]})
    whole = memory.buf
    assert whole is not None, "it is open"
    there, back = (np.frombuffer(whole, np.float64, len(values), offset=at) for at in (0, size))

    def ask() -> None:
        there[:] = values
        server.ask(path, body).release()
        if not np.array_equal(back, values):
            raise RuntimeError("the numbers have changed on their way")

    return ask


FRONT_DOOR = [0]


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[tuple[Path, tuple[str, int], farm.Client]]:
    """Run farm and the official server; yield the run folder, an address and a client."""
    file, run = folder / "model.py", folder / "run"
    file.write_text("import farm\n" + "".join(map(A_MODEL.format, SIZES)))
    models = [f"{file}:echo{size}" for size in SIZES]
    command = [sys.executable, "-m", "farm", "serve", *models, "--port", "0"]
    official = ("127.0.0.1", free_port())

    def is_up() -> bool:
        with contextlib.suppress(farm.FarmError):
            return bool(read_connection(run).url)
        return False

    def official_is_up() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(official).close()
            return True
        return False

    other = [sys.executable, __file__, "--official", str(official[1])]
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen([*command, "--dir", str(run)], stdout=quiet, stderr=quiet) as door,
        process(other, official_is_up),
    ):
        FRONT_DOOR[0] = door.pid
        try:
            while not is_up():
                if door.poll() is not None:
                    raise RuntimeError("farm did not start")
                time.sleep(0.05)
            with farm.connect(run) as client:
                yield run, official, client
        finally:
            door.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="alternating rounds")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers in an array")
    parser.add_argument("--official", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--relay", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.relay:
        relay_main(given.relay[0], int(given.relay[1]), int(given.relay[2]))
        return
    if given.official:
        umbridge.serve_models([Echo(size) for size in SIZES], given.official)
        return
    print(versions("numpy", "orjson", "umbridge"))
    memory = memoryview(bytearray(64 << 20))
    with (
        tempfile.TemporaryDirectory() as folder,
        servers(Path(folder)) as (run, official, client),
        bare_relay("unix") as unix,
        bare_relay("tcp") as tcp,
        bare_relay("files") as files,
    ):
        for size in given.sizes:
            raw = bytes(8 * size)
            found = [*cases(size, run, official, client)]
            found.append(Case("bare relay, unix", relayed(unix, raw, memory)))
            found.append(Case("bare relay, TCP and unix", relayed(tcp, raw, memory)))
            found.append(Case("bare relay, files in memory", relayed_as_file(files, raw, memory)))
            calls = max(2, min(40, 400_000 // size))
            for _ in range(given.rounds):
                for case in found:
                    case.measure(calls)
            print(f"\n{size} doubles there and back, median of {calls * given.rounds} calls")
            for case in found:
                print(f"  {case.told()}")
            ours, other, native, binary, shared, over_unix, over_tcp, by_file = (
                statistics.median(case.times) for case in found
            )
            print(f"  official / farm over UM-Bridge {other / ours:.2f}")
            print(f"  bare relay / native client {over_unix / native:.2f}")
            print(f"  bare relay / KServe binary {over_tcp / binary:.2f}")
            print(f"  KServe binary / KServe in shared memory {binary / shared:.2f}")
            print(
                f"  bare relay / the same with files in memory {over_unix / by_file:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
