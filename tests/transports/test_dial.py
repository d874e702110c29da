"""The line that leads to a dispatcher, from the same and from other machines."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq

from farm.errors import Unavailable
from farm.machine.spinning import ShortWaits
from farm.transports.connection import Connection
from farm.transports.dial import Dialer, LineWait, NoLine, accepts, accepts_tcp, dial_local
from farm.transports.keys import new_keys
from farm.transports.stream.address import ListeningSocket
from farm.transports.stream.line import StreamLine
from farm.transports.zmq.line import DealerLine
from tests.support.coroutines import LIMIT_S

NAME = "node/1-a"


def here(place: ListeningSocket) -> Connection:
    return Connection("", local=str(place.path), host=socket.gethostname())


def expect_dialed(place: ListeningSocket) -> None:
    """Somebody has connected there and said its name."""
    accepted = StreamLine(place.socket.accept()[0])
    frames = accepted.receive()
    assert frames is not None
    assert bytes(frames[0]) == NAME.encode()
    accepted.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ListeningSocket]:
    with closing(ListeningSocket(tmp_path)) as place:
        yield place


def test_on_the_farms_machine_its_socket_is_dialed(place: ListeningSocket) -> None:
    both = replace(here(place), endpoint="tcp://127.0.0.1:1")
    for connection in (here(place), both):
        line = Dialer(connection, NAME).dial()
        assert isinstance(line, StreamLine)
        expect_dialed(place)
        line.close()


def test_elsewhere_and_where_the_socket_is_not_to_be_seen_zeromq_leads_there(
    place: ListeningSocket, tmp_path: Path
) -> None:
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
        line = Dialer(connection, NAME).dial()
        assert isinstance(line, DealerLine)
        line._socket.set(zmq.LINGER, 0)
        line.close()


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("login1.cluster", r"farm on login1\.cluster .* --host 0\.0\.0\.0"),
        (socket.gethostname(), r"no farm listens at .*farm\.sock"),
    ],
    ids=["another machine", "gone"],
)
def test_why_no_farm_can_be_dialed_is_said(tmp_path: Path, host: str, text: str) -> None:
    with pytest.raises(Unavailable, match=text):
        Dialer(Connection("", local=str(tmp_path / "farm.sock"), host=host), NAME).dial()


def test_zeromq_is_loaded_only_where_it_is_needed() -> None:
    program = "import sys, farm.worker.host.host, farm.client.native_line as _;"
    program += "import farm.worker.host.line; print('zmq' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"


def test_a_line_that_was_never_dialed_has_ended() -> None:
    line = NoLine()
    assert (line.ended(), line.broken(), line.fileno(), line.receive()) == (True, True, -1, None)
    assert not line.send([b"m"])
    assert not line.flush(0.0)
    line.close()


class File(NamedTuple):
    """A connection file with the last of these places; without any, there is no file."""

    places: list[Connection]

    def read(self) -> Connection:
        if not self.places:
            raise Unavailable("no connection file")
        return self.places[-1]


def test_a_dispatcher_is_dialed_where_its_file_says_now(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    places = [ListeningSocket(folder) for folder in (tmp_path, tmp_path / "2")]
    read: Any = File([here(places[0])])
    dialer = Dialer(here(places[0]), NAME, file=read)
    line = dialer.dial()
    # With the same file, a line is replaced only when it has ended.
    read.places.append(
        replace(read.places[-1], url="http://127.0.0.1:1", grpc="127.0.0.1:2", token="t")
    )
    assert dialer.again(line) is None
    expect_dialed(places[0])
    assert line.receive() is None
    again = dialer.again(line)
    assert again is not None
    assert not again.ended()
    # With another file, it is dialed there; not before something listens.
    read.places.append(replace(here(places[1]), local=str(tmp_path / "not yet")))
    assert dialer.again(again) is None
    read.places.append(here(places[1]))
    moved = dialer.again(again)
    assert moved is not None
    assert dialer.connection.local == str(places[1].path)
    expect_dialed(places[1])
    for one in (line, again, moved):
        one.close()
    for place in places:
        place.close()


def test_a_file_that_cannot_be_read_changes_nothing(place: ListeningSocket) -> None:
    missing: Any = File([])
    dialer = Dialer(here(place), NAME, file=missing)
    line = dialer.again(NoLine())
    assert line is not None
    assert dialer.again(line) is None
    line.close()


def test_who_accepts_connections_over_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # The connections are not accepted, as when the process is stopped.
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert accepts(Connection(endpoint))
        assert accepts(Connection(endpoint, local="/none", host=socket.gethostname()))
    assert not accepts(Connection(endpoint))
    assert not accepts_tcp("tcp://127.0.0.1:none")


def test_who_accepts_connections_on_this_machine(tmp_path: Path) -> None:
    path = str(tmp_path / "farm.sock")
    here = Connection("", local=path, host=socket.gethostname())
    assert not accepts(here)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        assert not accepts(here)
        listener.listen()
        assert accepts(here)
        assert not accepts(replace(here, host="elsewhere"))
    assert not accepts(here)


@pytest.mark.parametrize("waits", [None, ShortWaits()])
def test_a_wait_says_what_is_ready(waits: ShortWaits | None) -> None:
    read_end, write_end = os.pipe()
    here, there = socket.socketpair()
    line, peer = StreamLine(here), StreamLine(there)
    try:
        wait = LineWait(read_end, waits)
        assert wait(line, 0.0) == {}, "nothing happened"
        assert set(wait(line, LIMIT_S, writes=True)) == {line.fileno()}, "there is room to write"
        assert peer.send([b"a message"])
        assert set(wait(line, LIMIT_S)) == {line.fileno()}
        os.write(write_end, b"w")
        assert set(wait(line, -1.0)) == {line.fileno(), read_end}
        assert set(wait(None, LIMIT_S)) == {read_end}
    finally:
        line.close()
        peer.close()
        os.close(read_end)
        os.close(write_end)
