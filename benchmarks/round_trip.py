"""Cost of one call on its way: farm's native client beside a bare pyzmq ROUTER broker.

    make install && .venv/bin/python benchmarks/round_trip.py

The bare broker is a program of twenty lines: clients and one worker process connect to a
process with two ROUTER sockets that forwards messages. It has no queue, no checks, no recovery
from losses; its messages are four doubles to the worker and one back. farm carries the same
numbers through its client, dispatcher, scheduler and worker.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import zmq

import farm
from http_load import Load
from machine import versions

MODEL = """
import farm

@farm.model(inputs={"x": 4}, outputs={"y": 1})
def forward(x):
    return x.sum()
"""

CALLERS = (1, 16, 64)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    seconds = parser.parse_args().seconds
    print(versions("numpy", "pyzmq"))
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
