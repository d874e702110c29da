"""Connections without a key, from another machine, at the ZeroMQ ports of a farm in a job."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from farm.transports.zmq.admission import MOST_UNPROVED
from tests.slurm.cluster import LIMIT_S, Cluster, wait_for
from tests.slurm.elastic import TWO_NODES, elastic_on, front_door_of
from tests.slurm.launched import Launched, workers_of, write_files
from tests.transports.zmq.test_admission import GREETING

STRANGERS, TIMES = 2400, 3
"""Connections at once, more than the two ports may hold; and how often each is made."""

STRANGE = f"""
import itertools, selectors, socket
from pathlib import Path
from farm.transports.connection import read_connection

GREETING = {GREETING!r}
files = [Path("run") / name for name in ("farm.json", "workers.json")]
places = [read_connection(file).endpoint.removeprefix("tcp://").rpartition(":") for file in files]
places = itertools.cycle([(host, int(port)) for host, _, port in places])
selector, dropped, strangers = selectors.DefaultSelector(), 0, {{}}

def come(number):
    strangers[number] = stranger = socket.socket()
    stranger.setblocking(False)
    stranger.connect_ex(next(places))
    selector.register(stranger, selectors.EVENT_WRITE, number)

for number in range({STRANGERS}):
    come(number)
again = {TIMES - 1} * {STRANGERS}
print("all have come", flush=True)
silent = 0
while len(strangers) > silent:
    for key, events in selector.select(1.0):
        stranger, number = key.fileobj, key.data
        try:
            if events == selectors.EVENT_READ:  # the farm's own greeting first
                if stranger.recv(4096):
                    continue
                raise ConnectionError
            stranger.getpeername()
            if number % 10:
                stranger.send(GREETING)
                selector.modify(stranger, selectors.EVENT_READ, number)
            else:
                silent += 1
                selector.unregister(stranger)
        except OSError:
            selector.unregister(stranger)
            strangers.pop(number).close()
            dropped += 1
            if dropped == {STRANGERS} // 4:
                print("many were dropped", flush=True)
            if again > 0:
                again -= 1
                come(number)
print(dropped, flush=True)
"""
"""A script that holds connections open, most with a greeting, and opens others for those dropped.

It ends when the last that has sent a greeting is dropped.
"""

INNOCENT = """
import itertools, json, urllib.request
from pathlib import Path
import farm
from farm.transports.connection import read_connection

door = read_connection("run")
headers = {"Authorization": f"Bearer {door.token}"}
with farm.connect("run", wait=60) as client:
    model = client.model("double")
    for n in itertools.count():
        body = json.dumps({"name": "double", "input": [[n]], "config": {}}).encode()
        request = urllib.request.Request(f"{door.url}/Evaluate", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["output"] == [[2.0 * n]]
        assert model([float(n)]).tolist() == [2.0 * n]
        if n == 0:
            print("calling", flush=True)
        if Path("over").exists():
            break
print(n, flush=True)
"""
"""A script that calls over HTTP, with a new connection for each call, and over ZeroMQ."""


@contextlib.contextmanager
def in_one_job(cluster: Cluster) -> Iterator[Path]:
    """Run a farm of the launcher on two nodes; yields the folder with its run folder `run`."""
    with elastic_on(cluster, "strangers-launcher") as files:
        write_files(files.folder)
        words = ("farm.sh", "--workers", "1", "--dir", "run", "double.py")
        job = Launched(cluster, files.folder, "-wcpu[1-2]", "-N2", "-n2", *words)
        workers_of(cluster, files.folder / "run", 2, job.output)
        yield files.folder
        cluster.run(["scancel", job.id])
        job.ended()


@contextlib.contextmanager
def elastic(cluster: Cluster) -> Iterator[Path]:
    """Run an elastic farm with two jobs; yields the folder with its run folder `run`."""
    with elastic_on(cluster, "strangers-elastic") as farm:
        write_files(farm.folder)
        farm.serve(TWO_NODES, "--host", "0.0.0.0")
        farm.wait_for_workers(2)
        yield farm.folder
        farm.stop()


@contextlib.contextmanager
def script(cluster: Cluster, folder: Path, host: str, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python script on a host for the block; it is ended after it."""
    with cluster.start([sys.executable, "-c", text], host, folder) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def descriptors_of(process: psutil.Process) -> Iterator[list[int]]:
    """Yield the numbers of open files of a process, which are read all the time in the block."""
    found = [process.num_fds()]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            found.append(process.num_fds())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line of a script, which ends with its errors if there is none."""
    assert process.stdout is not None
    return process.stdout.readline().strip() or process.communicate(timeout=LIMIT_S)[1]


@pytest.mark.parametrize("running", [in_one_job, elastic])
@pytest.mark.timeout(240)
def test_a_farm_in_jobs_serves_its_own_meanwhile(
    netns_cluster: Cluster, running: Callable[[Cluster], contextlib.AbstractContextManager[Path]]
) -> None:
    """Others are answered, another worker joins, and the front door keeps its descriptors."""
    with running(netns_cluster) as folder, contextlib.ExitStack() as stack:
        door = psutil.Process(front_door_of(folder / "run"))
        innocent = stack.enter_context(script(netns_cluster, folder, "gpu1", INNOCENT))
        assert line_of(innocent) == "calling"
        before = door.num_fds()
        with descriptors_of(door) as found:
            strangers = stack.enter_context(script(netns_cluster, folder, "gpu2", STRANGE))
            assert line_of(strangers) == "all have come"
            assert line_of(strangers) == "many were dropped"
            words = ("-wcpu4", "-n1", "farm.sh", "--workers", "1", "--to", "run", "double.py")
            late = Launched(netns_cluster, folder, *words)
            workers_of(netns_cluster, folder / "run", 3, late.output)
            dropped = line_of(strangers)
        (folder / "over").touch()
        calls = line_of(innocent)
        more = max(found) - before
        print(f"{dropped} dropped, {calls} calls, {more} descriptors more than before")
        assert int(calls) > 0
        assert int(dropped) >= STRANGERS * 9 // 10
        # Each port has its bound, and the kernel's queue that is accepted after it is reached.
        assert more < 2 * 2 * MOST_UNPROVED < STRANGERS * 9 // 10
        wait_for(lambda: door.num_fds() < before + 50, "the strangers' descriptors to be closed")
