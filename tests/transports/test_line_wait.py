"""The wait of a worker's thread."""

from __future__ import annotations

import os
import socket

import pytest

from farm.machine.spinning import ShortWaits
from farm.transports.line_wait import LineWait
from farm.transports.stream.line import StreamLine
from tests.support.time_limits import scaled

LIMIT_S = scaled(10.0)


@pytest.mark.parametrize("waits", [None, ShortWaits()])
def test_a_wait_says_whether_the_pipe_has_wake_ups(waits: ShortWaits | None) -> None:
    read_end, write_end = os.pipe()
    here, there = socket.socketpair()
    line, peer = StreamLine(here), StreamLine(there)
    try:
        wait = LineWait(read_end, waits)
        assert not wait(line, 0.0), "nothing happened"
        assert peer.send([b"a message"])
        assert not wait(line, LIMIT_S), "only the line is ready"
        os.write(write_end, b"w")
        assert wait(line, LIMIT_S)
        assert wait(None, LIMIT_S)
    finally:
        line.close()
        peer.close()
        os.close(read_end)
        os.close(write_end)
