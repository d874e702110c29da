"""Thousands of connections without a key, at the ZeroMQ ports that other machines reach."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil
import pytest
import urllib3

import farm
from farm.machine.resources import allow_many_open_files
from farm.transports.connection import read_connection
from farm.transports.zmq.admission import MOST_UNPROVED
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import farm_command, serving
from tests.transports.zmq.test_admission import GREETING

MODEL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x):
    return 2 * x
"""

STRANGERS = 4000


@pytest.mark.slow
def test_a_worker_joins_and_a_call_is_answered_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    allow_many_open_files()
    options = ("--workers", "0", "--host", "0.0.0.0", "--transport", "zmq")
    with serving(tmp_path, *options) as door, contextlib.ExitStack() as strangers:
        program = psutil.Process(door.process.pid)
        before = program.num_fds()
        files = [door.folder / "farm.json", door.folder / "workers.json"]
        ports = [int(read_connection(file).endpoint.rpartition(":")[2]) for file in files]
        for number in range(STRANGERS):
            stranger = strangers.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", ports[number % 2]))
            with contextlib.suppress(OSError):
                stranger.send(GREETING)
        words = ("worker", "m.py", "--to", str(door.folder))
        strangers.enter_context(farm_command(*words, cwd=tmp_path))
        most = program.num_fds()
        with farm.connect(door.folder, wait=60) as client:
            model = client.model("double")
            for x in range(200):
                assert model([float(x)]).tolist() == [2.0 * x]
                request = {"name": "double", "input": [[x]], "config": {}}
                answer = urllib3.request(
                    "POST", f"{door.connection.url}/Evaluate", json=request, timeout=60
                )
                assert answer.json()["output"] == [[2.0 * x]]
        most = max(most, program.num_fds())
        # Each port has its bound, and the kernel's queue that is accepted after it is reached.
        assert most - before < 2 * 2 * MOST_UNPROVED < STRANGERS
        # Though their own ends stay open, all that have sent anything are dropped.
        wait_until(lambda: program.num_fds() < before + MOST_UNPROVED // 16)
