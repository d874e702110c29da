"""When a silent dispatcher is lost: made-up silences, and real sockets to connect to."""

from __future__ import annotations

import math
import socket
from dataclasses import replace
from pathlib import Path

from farm.transports.connection import Connection
from farm.transports.reach import LONGEST_SILENCE, Reach, accepts, accepts_tcp


class Dispatcher:
    """Counts the connections to it."""

    def __init__(self, *, is_up: bool = True) -> None:
        self.is_up = is_up
        self.dialed = 0

    def is_there(self) -> bool:
        self.dialed += 1
        return self.is_up


def silences(reach: Reach, *times_s: float) -> list[bool]:
    return [reach.is_lost(silent_s) for silent_s in times_s]


def test_one_that_refuses_connections_is_lost_at_the_limit() -> None:
    gone = Dispatcher(is_up=False)
    reach = Reach(gone.is_there, 60.0)
    assert not any(silences(reach, *range(60)))
    assert reach.is_lost(60.0)
    assert gone.dialed == 3


def test_one_that_is_heard_is_not_dialed() -> None:
    busy = Dispatcher()
    reach = Reach(busy.is_there, 60.0)
    assert not any(silences(reach, 0.0, 5.0, 19.9, 0.0, 19.9, 1.0))
    assert busy.dialed == 0


def test_one_that_accepts_connections_is_waited_for() -> None:
    stopped = Dispatcher()
    reach = Reach(stopped.is_there, 60.0)
    assert not any(silences(reach, *range(3000)))
    assert stopped.dialed < 3000 / 60 * 3


def test_one_that_ends_after_a_long_silence_is_not_lost_at_once() -> None:
    """Another server has time to take over."""
    dispatcher = Dispatcher()
    reach = Reach(dispatcher.is_there, 60.0)
    assert not any(silences(reach, *range(1000)))
    dispatcher.is_up = False
    assert not any(silences(reach, *range(1000, 1040)))
    assert any(silences(reach, *range(1040, 1061)))


def test_a_connection_that_gets_through_in_between_starts_the_count_anew() -> None:
    dispatcher = Dispatcher(is_up=False)
    reach = Reach(dispatcher.is_there, 60.0)
    assert silences(reach, 20.0, 40.0) == [False, False]
    dispatcher.is_up = True
    assert silences(reach, 60.0) == [False]
    dispatcher.is_up = False
    assert silences(reach, 80.0, 100.0, 120.0) == [False, False, True]


def test_words_in_between_start_the_count_anew() -> None:
    reach = Reach(Dispatcher(is_up=False).is_there, 60.0)
    assert silences(reach, 20.0, 40.0, 0.0, 20.0, 40.0, 60.0) == [False] * 5 + [True]


def test_nobody_waits_for_ever_for_whoever_has_the_port_now() -> None:
    reach = Reach(Dispatcher().is_there, 1.0)
    assert not reach.is_lost(LONGEST_SILENCE - 0.01)
    assert reach.is_lost(LONGEST_SILENCE + 0.01)


def test_without_a_limit_none_is_lost() -> None:
    gone = Dispatcher(is_up=False)
    assert not any(silences(Reach(gone.is_there, math.inf), 0.0, 1e9))
    assert gone.dialed == 0


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
