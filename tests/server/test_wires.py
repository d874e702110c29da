"""Where a farm listens for its own messages, and its run folder, which it has for itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import farm
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


def test_the_socket_is_named_by_its_folder_which_may_be_mounted_elsewhere(tmp_path: Path) -> None:
    wires = listen(settings(tmp_path), elastic=False)
    (unix,) = wires.listeners
    assert isinstance(unix, UnixListener)
    assert wires.for_clients.local == "farm.sock"
    unix.place.close()


def test_a_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    wires = listen(settings(folder), elastic=False)
    (unix,) = wires.listeners
    assert isinstance(unix, UnixListener)
    assert wires.for_clients.local == str(unix.place.path)
    assert unix.place.path.parent != folder
    unix.place.close()


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


SERVER = """
import asyncio, json, os, sys
from pathlib import Path
from farm.server.farm import Farm
from farm.settings import Settings

async def main():
    farm = Farm(["model.py"], Settings(dir=Path("run"), port=0))
    connection = await farm.start()
    await farm.ready()
    print(json.dumps([os.getpid(), "zmq" in sys.modules, connection.url]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await farm.stop()

asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux who listens")
def test_a_local_farm_opens_no_port_but_that_of_http_and_loads_no_zeromq(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        pid, server_loaded, url = json.loads(server.stdout.readline())
        assert listening_ports(pid) == {int(url.rpartition(":")[2])}
        program = "import sys, farm; client = farm.connect('run'); "
        program += "print(client.model().evaluate(1.0), 'zmq' in sys.modules)"
        client = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert client.stdout.split() == ["[0.]", "False"]
        assert not server_loaded
        assert not read_connection(tmp_path / "run").endpoint
        assert not read_worker_connection(tmp_path / "run").endpoint
    finally:
        server.communicate()


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
        (listener,) = wires.listeners
        assert isinstance(listener, UnixListener)
        listener.place.close()


def left_by(folder: Path, host: str, pid: int, endpoint: str = "") -> Path:
    file = folder / "farm.json"
    write_connection(file, Connection(endpoint, host=host, pid=pid))
    return file


def test_a_new_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").take()
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_one_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"run folder .*file/run cannot be made"):
        RunFolder(tmp_path / "file" / "run").take()


def test_a_running_farm_keeps_its_folder(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").take()
    left_by(tmp_path / "run", socket.gethostname(), os.getppid(), "tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"runs in .* already; stop it, or .* dir="):
        RunFolder(tmp_path / "run").take()


def test_a_farm_on_another_host_keeps_it_while_it_answers(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").take()
    with socket.create_server(("127.0.0.1", 0)) as there:
        endpoint = f"tcp://127.0.0.1:{there.getsockname()[1]}"
        left_by(tmp_path / "run", "another-host", 1, endpoint)
        with pytest.raises(Unavailable, match="a farm on another-host runs in"):
            RunFolder(tmp_path / "run").take()
    RunFolder(tmp_path / "run").take()


class Double(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> object:
        return 2 * inputs["x"]


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
