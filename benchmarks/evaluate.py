"""Calls per second and latency of Evaluate on a trivial model, farm beside common alternatives.

One worker process everywhere, 1, 16 and 64 callers, all in one run:

    make install && .venv/bin/python benchmarks/evaluate.py

HTTP servers get the same load from the same generator: `farm serve --workers 1` and the official
UM-Bridge Python server, over persistent connections and over a new one for each call. Without
HTTP: farm's native client, a bare pyzmq ROUTER broker, dask.distributed and ProcessPoolExecutor.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import umbridge

sys.path.insert(0, str(Path(__file__).parent.parent))

import farm
from farm.transports.connection import read_connection
from http_load import Load, run_load
from machine import versions
from round_trip import bare_broker, broker_load
from tests.support.lone_caller import BODY, EXPECTED, MODEL

CALLERS = (1, 16, 64)
ROUNDS = 6


class Official(umbridge.Model):  # type: ignore[misc]  # published without types
    """The same model for the official server."""

    def __init__(self) -> None:
        super().__init__("forward")

    def get_input_sizes(self, config: object) -> list[int]:
        return [4]

    def get_output_sizes(self, config: object) -> list[int]:
        return [1]

    def __call__(self, parameters: list[list[float]], config: object) -> list[list[float]]:
        return [[float(sum(parameters[0]))]]

    def supports_evaluate(self) -> bool:
        return True


def trivial(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The function that the pools run."""
    return float(x.sum())


@contextlib.contextmanager
def process(arguments: list[str], ready: Callable[[], bool]) -> Iterator[None]:
    """Run a program for the duration of the block, which starts when `ready` returns True."""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as peer:
        try:
            give_up = time.monotonic() + 60
            while not ready():
                if peer.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"{arguments} did not start")
                time.sleep(0.05)
            yield
        finally:
            peer.terminate()


def answers(address: tuple[str, int]) -> bool:
    """Whether a model server answers at the address."""
    with contextlib.suppress(OSError, RuntimeError):
        run_load(address, "/Evaluate", BODY, callers=1, seconds=0, fresh=True, expected=EXPECTED)
        return True
    return False


def free_port() -> int:
    """Return an unused port; the official server cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def keep_in_flight(submit: Callable[[], Future[Any]], callers: int, seconds: float) -> Load:
    """Keep `callers` calls in flight for `seconds`."""
    load = Load()
    start = time.perf_counter()
    sent = {submit(): time.perf_counter() for _ in range(callers)}
    while sent:
        done, _ = wait(sent, return_when=FIRST_COMPLETED)
        now = time.perf_counter()
        for future in done:
            future.result()
            load.latencies_s.append(now - sent.pop(future))
            if now - start < seconds:
                sent[submit()] = time.perf_counter()
    load.seconds = time.perf_counter() - start
    return load


def http_peers(folder: Path, seconds: float) -> Iterator[tuple[str, int, Load]]:
    """Yield the loads of farm and the official server."""
    (folder / "model.py").write_text(MODEL)
    run = folder / "run"
    command = [sys.executable, "-m", "farm", "serve", str(folder / "model.py"), "--port", "0"]

    def farm_is_up() -> bool:
        with contextlib.suppress(farm.FarmError):
            return bool(read_connection(run).url)
        return False

    at_official = ("127.0.0.1", free_port())
    official = [sys.executable, __file__, "--official", str(at_official[1])]
    with (
        process([*command, "--dir", str(run)], farm_is_up),
        process(official, lambda: answers(at_official)),
    ):
        host, _, port = read_connection(run).url.removeprefix("http://").rpartition(":")
        peers = {"farm": (host, int(port)), "official server": at_official}
        # Alternate, because the speed of a virtual machine changes from one minute to the next.
        for _ in range(ROUNDS):
            for fresh, callers in itertools.product((False, True), CALLERS):
                for peer, address in peers.items():
                    name = f"{peer}, HTTP, {'fresh' if fresh else 'kept'} connections"
                    load = one_load(address, callers, seconds / ROUNDS, fresh=fresh)
                    yield name, callers, load
        with farm.connect(run) as client:
            x = np.arange(1.0, 5.0)
            call = farm.Call("forward", farm.Operation.EVALUATE, (x,))
            for callers in CALLERS:
                load = keep_in_flight(lambda: client.submit(call), callers, seconds)
                yield "farm, native client", callers, load


def one_load(address: tuple[str, int], callers: int, seconds: float, *, fresh: bool) -> Load:
    """Run a short load to warm up, then the measured one."""
    for length in (0.2 * seconds, seconds):
        load = run_load(
            address,
            "/Evaluate",
            BODY,
            callers=callers,
            seconds=length,
            fresh=fresh,
            expected=EXPECTED,
        )
    return load


def other_peers(seconds: float) -> Iterator[tuple[str, int, Load]]:
    """Yield the loads of the contenders without HTTP."""
    with bare_broker() as endpoint:
        for callers in CALLERS:
            yield "bare pyzmq broker", callers, broker_load(endpoint, callers, seconds)
    x = np.arange(1.0, 5.0)
    with ProcessPoolExecutor(1) as pool:
        pool.submit(trivial, x).result()
        for callers in CALLERS:
            load = keep_in_flight(lambda: pool.submit(trivial, x), callers, seconds)
            yield "ProcessPoolExecutor", callers, load
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as dask,
    ):
        dask.submit(trivial, x, pure=False).result()
        executor = dask.get_executor(pure=False)
        for callers in CALLERS:
            load = keep_in_flight(lambda: executor.submit(trivial, x), callers, seconds)
            yield "dask.distributed submit", callers, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each load")
    parser.add_argument("--official", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.official:
        umbridge.serve_models([Official()], options.official)
        return
    print(versions("numpy", "pyzmq", "uvloop", "umbridge", "aiohttp", "distributed"))
    loads: dict[str, dict[int, Load]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, callers, load in http_peers(Path(folder), options.seconds):
            loads.setdefault(name, {}).setdefault(callers, Load()).add(load)
    for name, callers, load in other_peers(options.seconds):
        loads.setdefault(name, {})[callers] = load
    print(f"\n{'calls/s (median latency in us)':42}" + "".join(f"{c:>8} callers" for c in CALLERS))
    for name, by_callers in loads.items():
        cells = (f"{by_callers[c].per_s:8.0f} ({by_callers[c].p50_s * 1e6:5.0f})" for c in CALLERS)
        print(f"{name:42}" + "".join(cells))
    print("\nratios of calls/s" + " " * 25 + "".join(f"{c:>8} callers" for c in CALLERS))
    kept, native = loads["farm, HTTP, kept connections"], loads["farm, native client"]
    for title, mine, theirs in (
        ("HTTP kept / official kept", kept, "official server, HTTP, kept connections"),
        (
            "HTTP fresh / official fresh",
            loads["farm, HTTP, fresh connections"],
            "official server, HTTP, fresh connections",
        ),
        ("native / bare broker", native, "bare pyzmq broker"),
        ("native / ProcessPoolExecutor", native, "ProcessPoolExecutor"),
        ("native / dask", native, "dask.distributed submit"),
        ("HTTP kept / dask", kept, "dask.distributed submit"),
    ):
        cells = (f"{mine[c].per_s / loads[theirs][c].per_s:16.2f}" for c in CALLERS)
        print(f"{title:42}" + "".join(cells))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
