"""Programs that try to join a private sweep as workers while it runs."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest
import zmq

import farm
from farm.call import ModelInfo, Result, TensorInfo, WorkerInfo
from farm.errors import InvalidRequest, Unavailable
from farm.transports.connection import Connection, read_connection
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.support.dispatcher_farm import serving

POINTS = 400

MODEL = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def square(x):
    time.sleep(0.01)
    while x[0] == 400 and not os.path.exists("enough"):
        time.sleep(0.01)
    return x * x
"""
"""The last of 400 points waits until there have been enough attacks or looks."""

SQUARE = ModelInfo("square", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),), max_batch=1)


class Intruder:
    """Connects under a name, joins again and again, and answers every message with 666.

    connection: the source of its keys, None for no keys. endpoint: the address.
    """

    def __init__(self, endpoint: str, name: str, connection: Connection | None) -> None:
        self.calls = 0
        self.joins = 0
        self._name = name
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.ROUTING_ID, name.encode())
        self._socket.set(zmq.LINGER, 0)
        if connection is not None:
            self._socket.curve_serverkey = connection.server_key.encode()
            self._socket.curve_publickey = connection.client_public.encode()
            self._socket.curve_secretkey = connection.client_secret.encode()
        self._socket.connect(endpoint)

    def attack(self) -> None:
        """Join again, and answer all messages that have arrived."""
        info = WorkerInfo(self._name, (SQUARE,), 50)
        with contextlib.suppress(zmq.Again):  # the queue is full, as no one accepts the messages
            self._socket.send_multipart(
                wire.encode_join(f"life {self.joins}", info), zmq.NOBLOCK, copy=True
            )
        self.joins += 1
        while self._socket.poll(1):
            with contextlib.suppress(InvalidRequest):
                message = wire.decode(self._socket.recv_multipart())
                if message.kind is not Kind.CALLS:
                    continue
                ids = [task_id for task_id, _ in wire.decode_calls(message)[1]]
                self.calls += len(ids)
                lies = [(i, Result((np.array([666.0]),), 0.001)) for i in ids]
                self._socket.send_multipart(wire.encode_answers(lies))

    def close(self) -> None:
        self._context.destroy(linger=0)


def ports_of(pid: int) -> set[int]:
    """Return the ports on which a process listens; every user of a machine can see them."""
    connections = psutil.Process(pid).net_connections("tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


@contextlib.contextmanager
def sweeping(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "farm", "sweep", *options, "-o", "s.h5"]
    words += ["--param", "x=1:400", "--design", f"grid:{POINTS}"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check_rows(path: Path) -> None:
    """Check that all points are there and correct."""
    with h5py.File(path) as file:
        x, y = file["theta"][:], file["out_0"][:]
    assert len(y) == POINTS
    np.testing.assert_array_equal(y, x * x)


class Intruders:
    """One intruder for each port and each known worker name."""

    def __init__(self, *, with_keys: bool) -> None:
        self.attacks = 0
        self._with_keys = with_keys
        self._names = {"node/1-a"}
        self._all: dict[tuple[int, str], Intruder] = {}

    def attack(self, ports: set[int], run: Path) -> None:
        """Join once at each port as each worker; with keys, first query the workers' names."""
        keys = read_connection(run) if self._with_keys else None
        if len(self._names) == 1:
            with contextlib.suppress(Unavailable), farm.connect(run) as line:
                self._names.update(row["name"] for row in line.status()["workers"])
        for port, name in itertools.product(ports, self._names):
            if (port, name) not in self._all:
                self._all[port, name] = Intruder(f"tcp://127.0.0.1:{port}", name, keys)
        for intruder in self._all.values():
            intruder.attack()
            self.attacks += 1

    @property
    def calls(self) -> int:
        """Return the number of calls that were sent to intruders."""
        return sum(intruder.calls for intruder in self._all.values())

    def close(self) -> None:
        for intruder in self._all.values():
            intruder.close()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["no keys", "the clients' keys"])
def test_a_sweep_has_no_wrong_row_whoever_tries_to_join(tmp_path: Path, who: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    with (
        serving(tmp_path, "model.py", "--workers", "2", "--transport", "zmq") as served,
        contextlib.closing(Intruders(with_keys=who != "no keys")) as intruders,
    ):
        served.wait_for_workers(2)
        ports = ports_of(served.process.pid)
        assert len(ports) == 3, "for HTTP, clients and workers"
        with sweeping(tmp_path, "--to", "run") as process:
            while process.poll() is None:
                intruders.attack(ports, served.folder)
                if intruders.attacks > 100:
                    (tmp_path / "enough").touch()
        assert process.returncode == 0
        assert intruders.calls == 0
    check_rows(tmp_path / "s.h5")


@pytest.mark.slow
def test_a_private_sweep_listens_at_no_port(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    looks = 0
    with sweeping(tmp_path, "model.py", "--workers", "2") as process:
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):  # the process has just ended
                family = [process.pid, *(p.pid for p in psutil.Process(process.pid).children())]
                assert [port for pid in family for port in ports_of(pid)] == []
                looks += 1
            if looks > 10:
                (tmp_path / "enough").touch()
    check_rows(tmp_path / "s.h5")
