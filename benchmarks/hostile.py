"""Latency of an innocent caller while another client sends hostile or just large requests.

    make install && .venv/bin/python benchmarks/hostile.py [--only TEXT] [--seconds 4]

A farm serves trivial models over every protocol; the innocent caller's model has its own worker.
One process calls it every 5 ms and records the latency of each answer: over a persistent
connection, and for every fourth call over a new one, as the stock UM-Bridge client
does. Meanwhile each case attacks from another process. The goal is an innocent call of at most
100 ms on a quiet machine of two cores; if the cores are busy with other work, the first line,
without an attack, shows the machine's own latency. The cases are in hostile_*.py, by topic.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import psutil

import farm
from hostile_target import Target
from machine import versions

HERE = Path(__file__).parent
CALL_EVERY_S = 0.005
FRESH_EVERY = 4
"""Every fourth call uses a new connection."""

MODELS = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def innocent(x):
    return 2 * x

@farm.model(inputs={"x": -1}, outputs={"y": -1})
def echo(x):
    return x

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def single(x):
    return 2 * x
"""


def cases() -> dict[str, Callable[[Target], None]]:
    """Return every case by `topic: name`, from the files beside this one."""
    found = {}
    for path in sorted(HERE.glob("hostile_*.py")):
        module = import_module(path.stem)
        for name, case in getattr(module, "CASES", {}).items():
            found[f"{path.stem.removeprefix('hostile_')}: {name}"] = case
    return found


def innocent(target: Target, results: Pipe) -> None:
    """Call until the parent sends a stop; send the latencies in seconds: kept, then fresh."""
    body = b'{"name":"innocent","input":[[1.0]],"config":{}}'
    request = (
        b"POST /Evaluate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\nauthorization: Bearer {target.token}\r\n\r\n".encode()
        + body
    )
    waits: tuple[list[float], list[float]] = ([], [])
    kept: socket.socket | None = None
    for number in itertools.count():
        if results.poll():
            break
        fresh = number % FRESH_EVERY == 0
        start = time.perf_counter()
        try:
            if fresh or kept is None:
                connection = socket.create_connection(target.http, 60)
            else:
                connection = kept
            connection.sendall(request)
            answer = connection.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise OSError(answer[:200])
            wait_s = time.perf_counter() - start
            if fresh:
                connection.close()
            else:
                kept = connection
        except OSError as error:
            print(f"  the innocent caller failed: {error}", file=sys.stderr)
            wait_s, kept = time.perf_counter() - start, None
        waits[fresh].append(wait_s)
        time.sleep(max(0.0, CALL_EVERY_S - wait_s))
    results.send(waits)


def attack(case: Callable[[Target], None], target: Target) -> None:
    """Run a case repeatedly for `target.seconds`; print its exceptions and continue."""
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        try:
            case(target)
        except OSError:
            pass  # the farm hung up, as it should
        except Exception as error:
            print(f"  {type(error).__name__}: {error}", file=sys.stderr)
            return


def measured(
    case: Callable[[Target], None] | None, target: Target, door: psutil.Process
) -> tuple[float, float, float, float, float]:
    """Return median, p99, longest latency, longest on a new connection; memory growth in MiB."""
    ours, theirs = multiprocessing.Pipe()
    caller = multiprocessing.Process(target=innocent, args=(target, theirs))
    before = door.memory_info().rss
    peak = before
    caller.start()
    time.sleep(0.5)
    if case is None:
        time.sleep(target.seconds)
    else:
        attacker = multiprocessing.Process(target=attack, args=(case, target))
        attacker.start()
        last = time.monotonic() + 3 * target.seconds + 60
        while attacker.is_alive() and time.monotonic() < last:
            attacker.join(0.05)
            peak = max(peak, door.memory_info().rss)
        attacker.kill()
        attacker.join()
        time.sleep(0.5)
    ours.send(None)
    kept, fresh = map(sorted, ours.recv())
    caller.join()
    return (
        kept[len(kept) // 2],
        kept[int(0.99 * (len(kept) - 1))],
        kept[-1],
        fresh[-1],
        (peak - before) / 2**20,
    )


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, seconds: float) -> tuple[subprocess.Popen[bytes], Target]:
    """Start a farm with every protocol; return its process and addresses."""
    (folder / "models.py").write_text(MODELS)
    mip, aepsych = free_port(), free_port()
    run = folder / "run"
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "farm", "serve", "models.py:echo", "models.py:single"),
            *("--workers", "1", "--host", "0.0.0.0", "--port", "0", "--grpc-port", "0"),
            *("--dir", str(run)),
            *("--mip", f"single=127.0.0.1:{mip}", "--aepsych", f"127.0.0.1:{aepsych}"),
        ],
        cwd=folder,
        stdout=(folder / "farm.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    file = run / "farm.json"
    for _ in range(600):
        if program.poll() is not None:
            raise SystemExit((folder / "farm.log").read_text())
        if file.exists() and (data := json.loads(file.read_text())).get("aepsych"):
            break
        time.sleep(0.1)
    else:
        raise SystemExit("the farm did not come up within a minute")
    # The innocent caller's model has a worker that runs no long calls of others.
    worker = subprocess.Popen(
        [sys.executable, "-m", "farm", "worker", "models.py:innocent", "--to", str(run)],
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(worker.terminate)
    with farm.connect(file) as client:
        while not client.status()["workers"] or "innocent" not in client.status()["models"]:
            time.sleep(0.1)
    return program, Target(
        host="127.0.0.1",
        http_port=int(data["url"].rpartition(":")[2]),
        grpc_port=int(data["grpc"].rpartition(":")[2]),
        mip_port=mip,
        aepsych_port=aepsych,
        token=data["token"],
        connection_file=file,
        seconds=seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each case attacks")
    options = parser.parse_args()
    chosen = {name: case for name, case in cases().items() if options.only in name}
    print(versions("httptools", "uvloop"))
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"\n{'case':44}{'p50':>9}{'p99':>9}{'longest':>10}{'fresh':>10}{'memory':>12}")
    with tempfile.TemporaryDirectory() as folder:
        program, target = start(Path(folder), options.seconds)
        try:
            door = psutil.Process(program.pid)
            for name, case in {"nobody attacks": None, **chosen}.items():
                p50, p99, longest, fresh, grown = measured(case, target, door)
                print(
                    f"{name:44}{p50 * 1e3:6.1f} ms{p99 * 1e3:6.0f} ms{longest * 1e3:7.0f} ms"
                    f"{fresh * 1e3:7.0f} ms{grown:+8.0f} MiB",
                    flush=True,
                )
                if program.poll() is not None:
                    raise SystemExit(f"the farm ended: {(Path(folder) / 'farm.log').read_text()}")
        finally:
            program.terminate()
            program.wait(60)


if __name__ == "__main__":
    main()
