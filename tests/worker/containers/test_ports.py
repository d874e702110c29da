"""Whose server listens at a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from farm.worker.containers.ports import free_port, is_anothers

LISTENS = """
import os, socket, subprocess, sys
if sys.argv[1:] == ["child"]:
    sys.exit(subprocess.run([sys.executable, "-I", "-S", "-c", os.environ["LISTENS"]]).returncode)
found = socket.create_server(("127.0.0.1", 0))
print(found.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_free_port_can_be_used() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_listener_of_this_process_is_not_the_containers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_anothers(port, 1 << 30)
        assert not is_anothers(port, os.getpgrp())
    assert not is_anothers(port, 1 << 30)  # nothing is known of it


def test_a_listener_of_a_grandchild_in_its_own_group() -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENS, "child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "LISTENS": LISTENS},
        process_group=0,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert not is_anothers(port, process.pid)
    assert is_anothers(port, 1 << 30)
    process.communicate()
