"""The line that leads to a dispatcher, from the same and from other machines."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from farm.errors import Unavailable
from farm.transports.connection import Connection
from farm.transports.dial import dial, dial_local
from farm.transports.keys import new_keys
from farm.transports.stream.address import ListeningSocket
from farm.transports.stream.line import StreamLine
from farm.transports.zmq.line import DealerLine

NAME = "node/1-a"


def here(place: ListeningSocket) -> Connection:
    return Connection("", local=str(place.path), host=socket.gethostname())


def test_on_the_farms_machine_its_socket_is_dialed(tmp_path: Path) -> None:
    place = ListeningSocket(tmp_path)
    both = replace(here(place), endpoint="tcp://127.0.0.1:1")
    for connection in (here(place), both):
        line = dial(connection, NAME)
        assert isinstance(line, StreamLine)
        accepted = StreamLine(place.socket.accept()[0])
        frames = accepted.receive()
        assert frames is not None
        assert bytes(frames[0]) == NAME.encode()
        line.close()
        accepted.close()
    place.close()


def test_elsewhere_and_where_the_socket_is_not_to_be_seen_zeromq_leads_there(
    tmp_path: Path,
) -> None:
    place = ListeningSocket(tmp_path)
    keys = new_keys()
    both = replace(
        here(place),
        endpoint="tcp://127.0.0.1:1",
        server_key=keys.server.public,
        client_public=keys.workers.public,
        client_secret=keys.workers.secret,
    )
    elsewhere = replace(both, host="login1.cluster")
    unseen = replace(both, local=str(tmp_path / "other"))
    for connection in (elsewhere, unseen):
        assert dial_local(connection, NAME) is None
        line = dial(connection, NAME)
        assert isinstance(line, DealerLine)
        line._socket.set(zmq.LINGER, 0)
        line.close()
    place.close()


def test_no_way_from_another_machine_is_said(tmp_path: Path) -> None:
    connection = Connection("", local=str(tmp_path / "farm.sock"), host="login1.cluster")
    with pytest.raises(Unavailable, match=r"farm on login1\.cluster .* --host 0\.0\.0\.0"):
        dial(connection, NAME)


def test_a_farm_that_is_gone_is_said(tmp_path: Path) -> None:
    connection = Connection("", local=str(tmp_path / "farm.sock"), host=socket.gethostname())
    with pytest.raises(Unavailable, match=r"no farm listens at .*farm\.sock"):
        dial(connection, NAME)


def test_zeromq_is_loaded_only_where_it_is_needed() -> None:
    program = "import sys, farm.transports.worker_host, farm.transports.native_client as _;"
    program += "import farm.transports.reporter; print('zmq' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
