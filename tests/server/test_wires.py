"""Where a farm listens for its own messages, and its run folder, which it has for itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.server.wires import RunFolder, Wires, listen
from farm.settings import Settings
from farm.transports.connection import (
    Connection,
    read_connection,
    read_worker_connection,
    write_connection,
)
from farm.transports.stream.listener import UnixListener
from farm.transports.zmq.listener import ZmqListener
from tests.server.test_farm import Double
from tests.support.coroutines import on_uvloop

MODEL = """
import sys
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def zmq_loaded(x):
    return [float("zmq" in sys.modules)]
"""


def settings(folder: Path, **values: object) -> Settings:
    return Settings(dir=folder, port=0, **values)  # type: ignore[arg-type]  # of the test's own


def close(wires: Wires) -> None:
    """Close the listeners of a farm that has not started."""
    for listener in wires.listeners:
        if isinstance(listener, ZmqListener):
            listener._close_sockets()
            listener._context.term()
        else:
            assert isinstance(listener, UnixListener)
            listener.place.close()


async def closed(wires_folder: Settings, *, elastic: bool = False) -> tuple[set[type], bool]:
    """Return the kinds of listeners for these settings, and whether clients get a Unix socket."""
    wires = listen(wires_folder, elastic=elastic)
    kinds = {type(listener) for listener in wires.listeners}
    close(wires)
    assert bool(wires.for_clients.local) == bool(wires.for_workers.local)
    assert bool(wires.for_clients.endpoint) == (ZmqListener in kinds)
    assert wires.for_workers.token == ""
    return kinds, bool(wires.for_clients.local)


@on_uvloop
async def test_zeromq_listens_only_when_others_may_dial_in(tmp_path: Path) -> None:
    local = settings(tmp_path)
    assert await closed(local) == ({UnixListener}, True)
    assert await closed(local, elastic=True) == ({UnixListener, ZmqListener}, True)
    beyond = settings(tmp_path, host="0.0.0.0")
    assert await closed(beyond) == ({UnixListener, ZmqListener}, True)
    assert await closed(settings(tmp_path, transport="zmq")) == ({ZmqListener}, False)


@pytest.mark.parametrize(
    ("host", "reach", "written"),
    [
        ("127.0.0.1", "", "127.0.0.1"),  # taken for an address of a network, as is the next
        ("::1", "", "[::1]"),
        ("127.0.0.1", "login.example", "login.example"),
        ("0.0.0.0", "", socket.gethostname()),
        ("0.0.0.0", "login.example", "login.example"),
    ],
)
def test_workers_and_clients_are_told_the_address_that_is_bound(
    host: str, reach: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's name may lead to another of its networks, where nothing listens."""
    monkeypatch.setattr("farm.server.wires.is_loopback", lambda host: False)
    wires = listen(settings(tmp_path, host=host), elastic=False, reach=reach)
    close(wires)
    for connection in (wires.for_clients, wires.for_workers):
        assert connection.endpoint.rpartition(":")[0] == f"tcp://{written}"


@pytest.mark.parametrize("name", ["run", "x" * 100], ids=["short", "long"])
def test_the_socket_is_in_the_folder_unless_its_path_is_too_long(tmp_path: Path, name: str) -> None:
    """In the folder, which may be mounted elsewhere, it is known by its name alone."""
    folder = tmp_path / name
    folder.mkdir()
    wires = listen(settings(folder), elastic=False)
    (unix,) = wires.listeners
    assert isinstance(unix, UnixListener)
    if name == "run":
        assert wires.for_clients.local == "farm.sock"
    else:
        assert wires.for_clients.local == str(unix.place.path)
        assert unix.place.path.parent != folder
    close(wires)


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports at which a process listens, as the kernel reports them."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:  # the process has closed it since
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


PROGRAM = """
import json, sys, threading, urllib.request
import farm, farm.server.farm

told = {"framework at the start": "fastapi" in sys.modules}
with farm.serve("model.py", dir="run", port=0) as client:
    for thread in threading.enumerate():
        if thread.name == "imports":
            thread.join()
    imported = []

    def note(event, arguments):
        if event == "import" and threading.current_thread().name == "farm":
            imported.append(arguments[0])

    sys.addaudithook(note)
    told["zmq in a worker"] = client.model().evaluate(1.0)[0]
    url = json.load(open("run/farm.json"))["url"]
    for path in ("/", "/farm/status", "/metrics"):
        urllib.request.urlopen(url + path).read()
    told["imported by the loop for requests"] = imported
    told["zmq in front door and client"] = "zmq" in sys.modules
    print(json.dumps(told), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux who listens")
def test_a_local_farm_loads_and_opens_only_what_it_needs(tmp_path: Path) -> None:
    """Its only port is that of HTTP; the first requests load nothing, for which calls would wait.

    Front door and client are one process here.
    """
    (tmp_path / "model.py").write_text(MODEL)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert json.loads(program.stdout.readline()) == {
            "framework at the start": False,
            "imported by the loop for requests": [],
            "zmq in a worker": 0.0,
            "zmq in front door and client": False,
        }
        connection = read_connection(tmp_path / "run")
        assert listening_ports(program.pid) == {int(connection.url.rpartition(":")[2])}
        assert not connection.endpoint
        assert not read_worker_connection(tmp_path / "run").endpoint
    finally:
        program.communicate()


@on_uvloop
async def test_what_a_killed_farm_left_is_in_nobodys_way(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "farm.sock"))
    stale.close()
    farm = Farm([], settings(tmp_path, workers=0), doors=False)
    connection = await farm.start()
    assert connection.local == "farm.sock"
    await farm.stop()
    assert not (tmp_path / "farm.sock").exists()


@on_uvloop
async def test_a_farm_takes_over_the_token_of_one_that_was_killed(tmp_path: Path) -> None:
    """HTTP clients on other machines have it in their URL."""
    here = settings(tmp_path)
    first = listen(here, elastic=False)
    assert first.for_clients.token
    write_connection(tmp_path / "farm.json", first.for_clients)
    second = listen(here, elastic=False)
    assert second.for_clients.token == first.for_clients.token
    (tmp_path / "farm.json").unlink()  # as after an orderly end
    third = listen(here, elastic=False)
    assert third.for_clients.token not in ("", first.for_clients.token)
    for wires in (third, second, first):
        close(wires)


def taken(folder: Path) -> None:
    RunFolder(folder / "run").take()


def left_by(folder: Path, host: str, pid: int, endpoint: str) -> None:
    write_connection(folder / "run" / "farm.json", Connection(endpoint, host=host, pid=pid))


def test_a_new_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    taken(tmp_path)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_one_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"run folder .*file/run cannot be made"):
        RunFolder(tmp_path / "file" / "run").take()


def test_a_running_farm_keeps_its_folder(tmp_path: Path) -> None:
    taken(tmp_path)
    left_by(tmp_path, socket.gethostname(), os.getppid(), "tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"runs in .* already; stop it, or .* dir="):
        taken(tmp_path)


def test_a_farm_on_another_host_keeps_it_while_it_answers(tmp_path: Path) -> None:
    taken(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as there:
        endpoint = f"tcp://127.0.0.1:{there.getsockname()[1]}"
        left_by(tmp_path, "another-host", 1, endpoint)
        with pytest.raises(Unavailable, match="a farm on another-host runs in"):
            taken(tmp_path)
    taken(tmp_path)


def test_a_taken_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    first = Farm([], Settings(port=0, dir=tmp_path), objects={"Double": Double()})
    with running(first) as connection:
        mine = (tmp_path / "farm.json").read_text()
        # A running process: this one's parent stands for another farm's.
        taken = mine.replace(f'"pid": {connection.pid}', '"pid": 1')
        (tmp_path / "farm.json").write_text(taken)
        second = Farm([], Settings(port=0, dir=tmp_path), objects={"Double": Double()})
        with pytest.raises(Unavailable, match=r"a farm \(process 1\) runs in"), running(second):
            pass
        assert (tmp_path / "farm.json").read_text() == taken


def test_the_folder_of_a_farm_that_has_ended_is_free_before_its_parent_takes_note(
    tmp_path: Path,
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        left = Connection("tcp://x:1", host=socket.gethostname(), pid=ended.pid)
        write_connection(tmp_path / "farm.json", left)
        part = Farm([], Settings(dir=tmp_path), objects={"Double": Double()}, doors=False)
        with running(part) as connection:
            assert connection.pid == os.getpid()
