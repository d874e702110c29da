"""Where the latency of a lone MIP call goes: when each step of it is reached, in three processes.

    python benchmarks/stages.py [--calls 3000]

One client calls a trivial model over a unix socket, with a connection for each call, as KubeMo's
client does. Front door and worker note the time at which they reach some of their functions; all
processes of a machine share that clock. Printed are medians since the client began the call, and
the differences between them. The same calls of a bare relay (bare.py), which only passes bytes to
another process and back, show what a call costs without a farm. To note a time costs about 1 µs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import mip
from bare import bare_server
from machine import versions
from process_use import name_of, processes

NOTING = """
import json, os, signal, sys, time

NOTED = []

def note(where, function, step, after=False):
    original = getattr(where, function)

    def noting(*args, **kwargs):
        if not after:
            NOTED.append((time.perf_counter_ns(), step))
        result = original(*args, **kwargs)
        if after and result is not None:
            NOTED.append((time.perf_counter_ns(), step))
        return result

    setattr(where, function, noting)

def toggle(number, frame, began=[]):
    if began:
        path = os.path.join(os.environ["NOTED"], str(os.getpid()))
        with open(path + ".part", "w") as file:
            json.dump(NOTED, file)
        os.replace(path + ".part", path)
        return
    began.append(True)
    modules = sys.modules
    line = modules["farm.transports.stream.line"].StreamLine
    if "farm.protocols.mip.connection" not in modules:
        note(line, "receive", "worker: the task is read", after=True)
        note(line, "send", "worker: the model has run")
        return
    connection = modules["farm.protocols.mip.connection"].MipConnection
    note(connection, "__init__", "front door: the connection is accepted")
    note(connection, "received", "front door: the request is read")
    note(connection, "_call", "front door: it is decoded")
    note(line, "send", "front door: it is scheduled")
    note(line, "receive", "front door: the worker's answer is read", after=True)
    note(connection, "_send", "front door: the answer is encoded")

signal.signal(signal.SIGURG, toggle)
"""
"""Loaded by Python at the start of each process of the farm: SIGURG begins and ends the notes."""

BEGINS, ENDS = "client: the call begins", "client: the answer is read"
Noted = list[tuple[int, str]]
SETTLED = 500
"""Calls at the beginning that do not count."""


def call(path: str, request: bytes, calls: int) -> Noted:
    """Make calls one after another and return when each began and ended."""
    noted: Noted = []
    for _ in range(calls):
        noted.append((time.perf_counter_ns(), BEGINS))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(request)
            connection.recv(1 << 16)
            noted.append((time.perf_counter_ns(), ENDS))
    return noted


def steps(noted: Noted) -> dict[str, float]:
    """Return the median time of each step since the beginning of its call, in µs, in order."""
    times: dict[str, list[float]] = defaultdict(list)
    count, began, reached = 0, 0, set[str]()
    for at, step in sorted(noted):
        if step == BEGINS:
            count, began, reached = count + 1, at, set()
        if count > SETTLED and step not in reached:
            reached.add(step)
            times[step].append((at - began) / 1e3)
    return dict(sorted(((s, statistics.median(t)) for s, t in times.items()), key=lambda x: x[1]))


def show(title: str, found: dict[str, float]) -> None:
    """Print the steps of one server."""
    print(f"\n{title}")
    before = 0.0
    for step, at in found.items():
        print(f"  {at:8.0f} µs  {at - before:+6.0f}  {step}")
        before = at


def of_farm(folder: Path, request: bytes, calls: int) -> Noted:
    """Return the steps of calls of a farm, in all processes."""
    os.environ["NOTED"] = os.environ["PYTHONPATH"] = str(folder)
    (folder / "sitecustomize.py").write_text(NOTING)
    path = str(folder / "farm")
    with mip.farm_server(folder, "trivial", path):
        call(path, request, SETTLED)
        pids = [pid for pid in processes(os.getpid()) if name_of(pid) in ("server", "worker")]
        pids.remove(os.getpid())
        for pid in pids:
            os.kill(pid, signal.SIGURG)
        noted = call(path, request, calls + SETTLED)
        for pid in pids:
            os.kill(pid, signal.SIGURG)
            while not (folder / str(pid)).exists():
                time.sleep(0.01)
            noted += [(at, step) for at, step in json.loads((folder / str(pid)).read_text())]
    return noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    options = parser.parse_args()
    print(versions("numpy", "uvloop"))
    request = mip.packet(1)
    with tempfile.TemporaryDirectory() as name:
        with bare_server("relay", mip.packet(1, answer=True), f"{name}/relay") as path:
            relayed = call(path, request, options.calls + SETTLED)
        show("bare relay", steps(relayed))
        show("farm", steps(of_farm(Path(name), request, options.calls)))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
