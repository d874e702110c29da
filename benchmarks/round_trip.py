"""Cost of one call on its way: farm's native client beside farm's HTTP and a bare pyzmq broker.

    make install && .venv/bin/python benchmarks/round_trip.py

First a lone caller of `farm serve --workers 1`: blocking calls of the native client, futures of
the native client, blocking calls of farm's HTTP client, and UM-Bridge over a kept connection by
a bare loop that sends the same bytes each time, in turns, with the processor time and the context
switches of each process. `--lone` stops there.

The bare broker is a program of twenty lines: clients and one worker process connect to a
process with two ROUTER sockets that forwards messages. It has no queue, no checks, no recovery
from losses; its messages are four doubles to the worker and one back. farm carries the same
numbers through its client, dispatcher, scheduler and worker.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import zmq

import farm
from client_map import served
from farm.transports.connection import read_connection
from http_load import Load, run_load
from machine import versions

MODEL = """
import farm

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def forward(x):
    return x.sum()
"""

CALLERS = (1, 16, 64)
BODY = b'{"name": "forward", "input": [[1.0, 2.0, 3.0, 4.0]], "config": {}}'
LONE_ROUNDS = 12


def broker(tell: Connection) -> None:
    """Forward messages of clients to the worker, and its answers back."""
    context = zmq.Context()
    clients, workers = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    tell.send(
        [f"tcp://127.0.0.1:{s.bind_to_random_port('tcp://127.0.0.1')}" for s in (clients, workers)]
    )
    poller = zmq.Poller()
    poller.register(clients, zmq.POLLIN)
    poller.register(workers, zmq.POLLIN)
    while True:
        for source, _ in poller.poll():
            (workers if source is clients else clients).send_multipart(source.recv_multipart())


def worker(endpoint: str) -> None:
    """Return the sum of each message."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(endpoint)
    while True:
        *route, data = socket.recv_multipart()
        socket.send_multipart([*route, np.frombuffer(data).sum().tobytes()])


@contextlib.contextmanager
def bare_broker() -> Iterator[str]:
    """Run a broker with one worker for the duration of the block; yield the clients' endpoint."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    processes = [context.Process(target=broker, args=(there,), daemon=True)]
    processes[0].start()
    for_clients, for_workers = here.recv()
    processes.append(context.Process(target=worker, args=(for_workers,), daemon=True))
    processes[1].start()
    try:
        yield for_clients
    finally:
        for process in processes:
            process.terminate()
            process.join()


def broker_load(endpoint: str, callers: int, seconds: float) -> Load:
    """Keep `callers` messages in flight for `seconds`."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        data = np.arange(1.0, 5.0).tobytes()
        load = Load()
        for length in (0.2 * seconds, seconds):
            load = Load()
            sent_at = {}
            start = time.perf_counter()
            for i in range(callers):
                sent_at[i] = time.perf_counter()
                socket.send_multipart([b"%d" % i, data])
            while sent_at:
                name, answer = socket.recv_multipart()
                now = time.perf_counter()
                if np.frombuffer(answer) != 10.0:
                    raise RuntimeError(f"a wrong answer: {answer!r}")
                load.latencies_s.append(now - sent_at.pop(int(name)))
                if now - start < length:
                    sent_at[int(name)] = now
                    socket.send_multipart([name, data])
            load.seconds = time.perf_counter() - start
    return load


def alone(client: farm.Client, seconds: float) -> Load:
    """Run one call after the other through farm."""
    call = farm.Call("forward", farm.Operation.EVALUATE, (np.arange(1.0, 5.0),))
    load = Load()
    for length in (0.2 * seconds, seconds):
        load = Load()
        start = now = time.perf_counter()
        while now - start < length:
            if client.submit(call).result().outputs[0][0] != 10.0:
                raise RuntimeError("a wrong answer")
            before, now = now, time.perf_counter()
            load.latencies_s.append(now - before)
        load.seconds = now - start
    return load


def one_by_one(call: Callable[[], float], seconds: float) -> Load:
    """Make one call after the other."""
    load = Load()
    start = now = time.perf_counter()
    while now - start < seconds:
        if call() != 10.0:
            raise RuntimeError("a wrong answer")
        before, now = now, time.perf_counter()
        load.latencies_s.append(now - before)
    load.seconds = now - start
    return load


class Spent:
    """Processor time and context switches of one process, with all its threads."""

    def __init__(self, pid: int) -> None:
        self._threads = Path(f"/proc/{pid}/task")
        self.last = (0.0, 0.0, 0.0)
        self.total = [0.0, 0.0, 0.0]
        self.renew()

    def renew(self) -> None:
        """Start counting here."""
        self.last = self._read()

    def add(self) -> None:
        """Add what was used since `renew`."""
        self.total = [
            t + n - b for t, n, b in zip(self.total, self._read(), self.last, strict=True)
        ]

    def _read(self) -> tuple[float, float, float]:
        """Return microseconds of processor time; voluntary and other context switches."""
        run_us = own = forced = 0.0
        for thread in self._threads.iterdir():
            run_us += float((thread / "schedstat").read_text().split()[0]) / 1000
            for line in (thread / "status").read_text().splitlines():
                if line.startswith("voluntary"):
                    own += float(line.split()[1])
                elif line.startswith("nonvoluntary"):
                    forced += float(line.split()[1])
        return run_us, own, forced


def lone_caller(seconds: float) -> None:
    """Print what a lone call costs in each way, measured in turns."""
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (run, server):
        url = read_connection(run).url
        with farm.connect(run) as client, farm.connect(url) as by_http:
            host, _, port = url.removeprefix("http://").rpartition(":")
            model, http_model = client.model(), by_http.model()
            x = np.arange(1.0, 5.0)

            def over_http(length: float) -> Load:
                return run_load(
                    (host, int(port)),
                    "/Evaluate",
                    BODY,
                    callers=1,
                    seconds=length,
                    fresh=False,
                    expected=b"10.0",
                )

            ways: dict[str, Callable[[float], Load]] = {
                "native, model(x)": lambda length: one_by_one(lambda: model(x)[0], length),
                "native, submit(x).result()": lambda length: one_by_one(
                    lambda: model.submit(x).result()[0], length
                ),
                "HTTP, model(x)": lambda length: one_by_one(lambda: http_model(x)[0], length),
                "HTTP, bare loop": over_http,
            }
            worker = client.status()["workers"][0]["pid"]
            pids = {"client": psutil.Process().pid, "farm": server.pid, "worker": worker}
            loads = {way: Load() for way in ways}
            medians: dict[str, list[float]] = {way: [] for way in ways}
            spent = {way: {role: Spent(pid) for role, pid in pids.items()} for way in ways}
            for _ in range(LONE_ROUNDS):
                for way, run_one in ways.items():
                    run_one(0.05)
                    for one in spent[way].values():
                        one.renew()
                    load = run_one(seconds / LONE_ROUNDS)
                    for one in spent[way].values():
                        one.add()
                    loads[way].add(load)
                    medians[way].append(load.p50_s)
    over = medians["HTTP, bare loop"]
    costs = "a call: processor us, waits + preemptions"
    print(f"\n{'a lone caller':28}{'p50':>8}{'of HTTP':>9}   {costs}")
    for way, load in loads.items():
        ratio = statistics.median(m / o for m, o in zip(medians[way], over, strict=True))
        count = len(load.latencies_s)
        cells = []
        for role, one in spent[way].items():
            run_us, own, forced = (value / count for value in one.total)
            cells.append(f"{role} {run_us:.0f}, {own:.1f} + {forced:.1f}")
        print(f"{way:28}{load.p50_s * 1e6:5.0f} us{ratio:9.2f}   " + "; ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--lone", action="store_true", help="only the lone caller")
    options = parser.parse_args()
    seconds = options.seconds
    print(versions("numpy", "pyzmq"))
    lone_caller(seconds)
    if options.lone:
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.py"
        model.write_text(MODEL)
        with farm.serve(model) as client:
            mine = alone(client, seconds)
            points = np.tile(np.arange(1.0, 5.0), (50_000, 1))
            forward = client.model("forward")
            forward.map(points[:1000])
            start = time.perf_counter()
            sums = forward.map(points)
            mapped = len(points) / (time.perf_counter() - start)
            assert (sums == 10.0).all()
    with bare_broker() as endpoint:
        bare = {callers: broker_load(endpoint, callers, seconds) for callers in CALLERS}
    print(f"\none call alone, median: farm {mine.p50_s * 1e6:.0f} us, ", end="")
    print(f"bare broker {bare[1].p50_s * 1e6:.0f} us, ratio {mine.p50_s / bare[1].p50_s:.2f}")
    for callers in CALLERS[1:]:
        print(f"bare broker, {callers} in flight: {bare[callers].per_s:.0f} calls/s")
    print(f"farm, map of {len(points)} points: {mapped:.0f} calls/s")


if __name__ == "__main__":
    main()
