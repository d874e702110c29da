"""A real front door with up to 10,000 simulated workers: joining, working, idling, losing a rack.

    make install && .venv/bin/python benchmarks/scale.py

Ten processes, the racks, each speak farm's wire for a tenth of the workers, over a connection for
each worker. The workers compute nothing: a run is a time after which the answer is sent. It is as
many times longer as there are more workers, so each number of workers answers the same number of
calls per second, and what a call costs can be compared. All numbers are of the front door's process
alone, because workers that share a machine with it take its time.

ZeroMQ connects them, as workers on other machines, or the stream of the farm's own machine. Where
the limit of file descriptors (`ulimit -Hn`) is lower than they need, there are fewer workers.
"""

from __future__ import annotations

import argparse
import heapq
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).parent.parent))

import farm
from farm.call import Buffer, Call
from farm.client import Client
from farm.transports.connection import WORKERS_FILE, Connection, read_connection
from farm.transports.dial import DialedLine, Dialer
from farm.transports.zmq import line as zmq_line
from machine import versions
from tests.support.many_workers import REPORT_EVERY_S, LightWorker

ROOT = Path(__file__).parent.parent
RACKS = 10
FILES_A_WORKER = {"zmq": 1, "auto": 4}
"""Descriptors of the front door; "auto": a socket on its machine, whose peers may use a quarter."""

CALLS_PER_S = 2000.0
"""Calls that the workers together can answer."""

LIMIT_S = 300.0


class SocketLine:
    """A line over ZeroMQ. Those of a process share one context, and so one thread."""

    may_come_back = True
    drained = False
    queued = 0

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], to: Connection, name: str) -> None:
        self.socket = socket = context.socket(zmq.DEALER)
        socket.set(zmq.ROUTING_ID, name.encode())
        socket.set(zmq.LINGER, 2000)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.CURVE_SERVERKEY, to.server_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, to.client_public.encode())
        socket.set(zmq.CURVE_SECRETKEY, to.client_secret.encode())
        socket.connect(to.endpoint)

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting."""
        zmq_line.send(self.socket, frames)
        return True

    def receive(self, most: int | None = None) -> Sequence[Buffer] | None:
        """Return the frames of the next message; None if there is none now."""
        return zmq_line.receive(self.socket)

    def flush(self, timeout_s: float) -> bool:
        """Return True: libzmq sends."""
        return True

    def fileno(self) -> int:
        """Return -1: the poller takes the socket itself."""
        return -1

    def ended(self) -> bool:
        """Return False: libzmq connects again."""
        return False

    def broken(self) -> bool:
        """Return False: libzmq connects again."""
        return False

    def came_back(self) -> bool:
        """Return False: nothing is done about it here."""
        return False

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def rack(folder: str, name: str, count: int, run_s: float) -> None:
    """Be `count` workers until the farm ends."""
    to = read_connection(Path(folder) / WORKERS_FILE)
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count + 64)

    def dialed(name: str) -> DialedLine:
        return Dialer(to, name).dial() if to.local else SocketLine(context, to, name)

    workers: dict[Any, LightWorker] = {}
    poll = zmq.Poller()
    for number in range(count):
        worker = LightWorker(name, number, dialed)
        worker.run_s = run_s
        line = worker.line
        at = line.socket if isinstance(line, SocketLine) else line.fileno()
        workers[at] = worker
        poll.register(at, zmq.POLLIN)
    # Real workers report at times of their own: a share of them in each tenth of the interval.
    shares = [list(workers.values())[k::10] for k in range(10)]
    share, order = 0, 0
    report_at = time.monotonic() + REPORT_EVERY_S / 10
    runs: list[tuple[float, int, LightWorker, int, Call]] = []
    while True:
        until = min(report_at, runs[0][0]) if runs else report_at
        for at, _ in poll.poll(int(1000 * max(0.0, until - time.monotonic()))):
            worker = workers[at]
            for task, call in worker.hear():
                order += 1
                heapq.heappush(runs, (time.monotonic() + run_s, order, worker, task, call))
        now = time.monotonic()
        while runs and runs[0][0] <= now:
            _, _, worker, task, call = heapq.heappop(runs)
            worker.answer(task, call)
        if now >= report_at:
            report_at += REPORT_EVERY_S / 10
            for worker in shares[share]:
                worker.report()
            share = (share + 1) % 10


@dataclass
class Usage:
    """Processor seconds and resident memory of a process, in seconds and bytes."""

    processor_s: float
    memory: int


def usage_of(pid: int) -> Usage:
    """Return what a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Return the seconds until the condition holds. Raises SystemExit after a limit."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() > start + LIMIT_S:
            raise SystemExit(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - start


def measure(workers: int, seconds: float, transport: str) -> None:
    """Print one row of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = [
            sys.executable,
            "-m",
            "farm",
            "serve",
            "--workers",
            "0",
            "--port",
            "0",
            "--transport",
            transport,
        ]
        with (Path(place) / "log").open("w") as log:
            door = subprocess.Popen([*words, "--dir", str(folder)], stdout=log, stderr=log)
        racks: list[subprocess.Popen[bytes]] = []
        try:
            wait_until(lambda: (folder / "farm.json").exists(), "the farm starts")
            with farm.connect(folder, client="load") as client:
                _measure(workers, seconds, client, door.pid, folder, racks)
        finally:
            for process in (*racks, door):
                process.kill()
                process.wait()


def _measure(
    workers: int,
    seconds: float,
    client: Client,
    door: int,
    folder: Path,
    racks: list[subprocess.Popen[bytes]],
) -> None:
    begin = usage_of(door)
    run_s = workers / CALLS_PER_S
    for number in range(RACKS):
        words = [sys.executable, __file__, "--rack", str(folder), f"rack{number}"]
        racks.append(subprocess.Popen([*words, str(workers // RACKS), str(run_s)], cwd=ROOT))
    join_s = wait_until(lambda: _count(client) == workers, "all workers join")
    there = usage_of(door)

    model = client.model()
    calls = round(CALLS_PER_S * max(seconds, 3 * run_s))
    points = np.arange(calls).reshape(-1, 1) / calls  # the workers fail from 1000 on
    in_flight = max(4096, 3 * workers)
    list(
        model.map(points[: 2 * workers], in_flight=in_flight)
    )  # the farm learns how long runs take
    before, start = usage_of(door), time.monotonic()
    _check(list(model.map(points, in_flight=in_flight)), points)
    lasted_s = time.monotonic() - start
    after = usage_of(door)

    time.sleep(1.0)
    idle = usage_of(door)
    time.sleep(10.0)
    idle_share = (usage_of(door).processor_s - idle.processor_s) / 10.0

    with ThreadPoolExecutor() as pool:
        answers = pool.submit(model.map, points, in_flight=in_flight)
        time.sleep(calls / CALLS_PER_S / 4)
        killed_at = usage_of(door)
        racks[0].kill()
        left = workers - workers // RACKS
        lost_s = wait_until(lambda: _count(client) == left, "a rack is lost")
        _check(answers.result(), points)
        lost = usage_of(door)

    calls_s = after.processor_s - before.processor_s
    above_s = max(0.0, calls_s - idle_share * lasted_s)
    print(
        f"{workers:8}{join_s:9.1f}{1e6 * (there.processor_s - begin.processor_s) / workers:10.0f}"
        f"{(there.memory - begin.memory) / workers / 1024:9.1f}{calls / lasted_s:9.0f}"
        f"{1e6 * calls_s / calls:9.0f}{1e6 * above_s / calls:9.0f}{100 * idle_share:8.1f}"
        f"{lost_s:9.2f}{lost.processor_s - killed_at.processor_s:9.2f}",
        flush=True,
    )


def _count(client: Client) -> float:
    """Return the mean number of workers in the last second, without a row for each of them."""
    series = client.history(since=-5)["series"]["workers"]
    return float(series[-1]) if len(series) else 0.0


def _check(answers: object, points: np.ndarray) -> None:
    """Raise SystemExit unless each call has its one answer."""
    if not np.array_equal(np.asarray(answers), 2 * points):
        raise SystemExit("an answer is wrong, missing or doubled")


def allowed(workers: int, transport: str) -> int:
    """Raise the limit of file descriptors, and return how many workers it lets there be."""
    each = FILES_A_WORKER[transport]
    wanted = each * workers + 2048
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
        except (OSError, ValueError):
            return (hard - 2048) // each // RACKS * RACKS
    return workers


def main() -> None:
    if sys.argv[1:2] == ["--rack"]:
        _, _, folder, name, count, run_s = sys.argv
        rack(folder, name, int(count), float(run_s))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--seconds", type=float, default=15.0, help="of steady work, at least")
    parser.add_argument("--transport", choices=["zmq", "auto"], default="zmq")
    options = parser.parse_args()
    print(versions("uvloop", "numpy"))
    print(
        f"\n{'':8}{'joined':>9}{'us to':>10}{'KiB a':>9}{'':9}{'us a':>9}{'above':>9}{'idle,':>8}"
        f"{'rack':>9}{'costs':>9}\n{'workers':>8}{'in s':>9}{'join':>10}{'worker':>9}"
        f"{'calls/s':>9}{'call':>9}{'idle':>9}{'% core':>8}{'lost, s':>9}{'cpu s':>9}"
    )
    for workers in options.workers:
        measure(allowed(workers, options.transport), options.seconds, options.transport)


if __name__ == "__main__":
    main()
