"""Performance of the AEPsych server: messages per second, and its idle cost.

    python benchmarks/experiment_server.py

Every tell is on the disk before its answer, so the disk has a share in all but `info`: how often a
second a plain file can be appended to and synchronised stands beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from machine import versions

CONFIG = {
    "common": {"parnames": "[x, y]", "outcome_types": "[continuous]", "strategy_names": "[sobol]"},
    "x": {"par_type": "continuous", "lower_bound": 0, "upper_bound": 1},
    "y": {"par_type": "continuous", "lower_bound": 0, "upper_bound": 1},
    "sobol": {"generator": "SobolGenerator", "min_asks": 1_000_000},
}
CLIENTS = 16
IDLE_S = 5.0
MANY_TRIALS = 200_000
"""In one tell: some 6 MB."""


class Client:
    """A connection that waits for each answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))

    def ask(self, kind: str, message: Mapping[str, Any] | None = None) -> Any:
        """Send a request; return the answer."""
        self._socket.sendall(json.dumps({"type": kind, "message": message or {}}).encode())
        data = b""
        while True:
            data += self._socket.recv(1 << 20)
            with contextlib.suppress(ValueError):
                answer = json.loads(data)
                assert "server_error" not in answer, answer
                return answer

    def tell(self, number: int) -> None:
        """Tell one trial."""
        config = {"x": 0.5, "y": number / 1e6}
        self.ask("tell", {"config": config, "outcome": number})


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run a server whose journal is in `folder`; yield its port and its process."""
    command = [sys.executable, "-m", "farm", "experiment", "serve", "--aepsych", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", process.stdout.readline())
        assert found is not None
        yield int(found[1]), psutil.Process(process.pid)
        process.kill()


def rate(count: int, do: Callable[[int], object]) -> float:
    """Return how often per second `do` can run."""
    began = time.perf_counter()
    for k in range(count):
        do(k)
    return count / (time.perf_counter() - began)


def together(port: int, count: int, *, one_experiment: bool) -> float:
    """Return the tells per second of CLIENTS concurrent clients."""

    def one() -> None:
        client = Client(port)
        if one_experiment:
            client.ask("resume", {"strat_id": 0})
        else:
            client.ask("setup", {"config_dict": CONFIG})
        for k in range(count):
            client.tell(k)

    threads = [threading.Thread(target=one) for _ in range(CLIENTS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CLIENTS * count / (time.perf_counter() - began)


def longest_info_s(port: int) -> float:
    """Return the slowest answer to `info` while another client tells MANY_TRIALS at once."""
    telling, watching = Client(port), Client(port)
    for client in (telling, watching):
        client.ask("resume", {"strat_id": 0})
    n = MANY_TRIALS
    message = {"config": {"x": [0.123456789] * n, "y": [0.2] * n}, "outcome": [1.5] * n}
    thread = threading.Thread(target=telling.ask, args=("tell", message))
    thread.start()
    longest = 0.0
    while thread.is_alive():
        began = time.perf_counter()
        watching.ask("info")
        longest = max(longest, time.perf_counter() - began)
    return longest


def bare_commits(folder: Path, count: int) -> float:
    """Return the appends per second to a plain file, each synced to disk."""
    body = b"x" * 200
    with (folder / "bare").open("wb", buffering=0) as file:

        def append(_: int) -> None:
            file.write(body)
            os.fsync(file.fileno())

        return rate(count, append)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=500, help="messages of each kind and client"
    )
    parser.add_argument(
        "--folder", default=None, help="folder of the journal: its disk limits the rate"
    )
    arguments = parser.parse_args()
    count = arguments.messages
    print(versions("numpy", "scipy", "uvloop"))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        print(f"{bare_commits(folder, count):8,.0f} synchronised appends/s to a plain file")
        with server(folder) as (port, process):
            client = Client(port)
            client.ask("setup", {"config_dict": CONFIG})
            client.ask("ask")  # the first one loads scipy
            print(f"{rate(count, client.tell):8,.0f} tells/s, one client")
            print(f"{rate(count, lambda k: client.ask('ask')):8,.0f} Sobol asks/s, one client")
            print(f"{rate(count, lambda k: client.ask('info')):8,.0f} infos/s, one client")
            for one in (True, False):
                whose = "of one experiment" if one else "each with an experiment"
                tells = together(port, count, one_experiment=one)
                print(f"{tells:8,.0f} tells/s, {CLIENTS} clients {whose}")
            longest = longest_info_s(port)
            print(f"{longest:8.2f} s the slowest info while {MANY_TRIALS:,} trials are told")
            before = process.cpu_times()
            time.sleep(IDLE_S)
            after = process.cpu_times()
            busy = after.user + after.system - before.user - before.system
            print(f"{100 * busy / IDLE_S:8.2f} % of a core while idle")
            print(f"{process.memory_info().rss / 1e6:8,.0f} MB")
        began = time.perf_counter()
        with server(folder) as (port, _):
            told = Client(port)
            told.ask("resume", {"strat_id": 0})
            trials = told.ask("info")["current_strat_data_pts"]
            print(
                f"{time.perf_counter() - began:8.2f} s until a new server has all {trials:,} trials"
            )


if __name__ == "__main__":
    main()
