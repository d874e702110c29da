"""Attacks over the unix socket of the run folder, by processes of the farm's own user."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np

from farm.call import Buffer, Call, Operation
from farm.transports.connection import read_connection
from farm.transports.dial import DialedLine, Dialer
from farm.transports.identity import CLIENT_PREFIX
from farm.wire import messages as wire
from farm.wire.messages import Kind
from hostile_target import Target

MB = 1_000_000
LARGE = np.ones(64 * MB // 8)
PROBES = 1000
LINES = 200


def dialed(target: Target) -> DialedLine:
    """Return a line with a client identity of its own."""
    name = CLIENT_PREFIX.decode() + secrets.token_hex(8)
    return Dialer(read_connection(target.connection_file), name).dial()


def echo(number: int, array: np.ndarray) -> Sequence[Buffer]:
    """Return the message that asks for the array back."""
    return wire.encode_calls([(number, Call("echo", Operation.EVALUATE, (array,)))])


def large_messages(target: Target) -> None:
    """Send 64 MB and receive them back, repeatedly."""
    line = dialed(target)
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        line.send([*echo(1, LARGE)])
        line.flush(target.seconds)
        while time.monotonic() < end:
            frames = line.receive()
            if frames is not None and wire.decode(frames).kind is Kind.ANSWERS:
                break
    line.close()


def answers_unread(target: Target) -> None:
    """Ask for 64 MB repeatedly, without reading."""
    line = dialed(target)
    end = time.monotonic() + target.seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        line.send([*echo(number, LARGE)])
        line.flush(0.2)
    line.close()


def small_talk(target: Target) -> None:
    """Send messages of a few bytes, as many as possible."""
    line = dialed(target)
    probe = wire.encode(Kind.PROBE)
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        for _ in range(PROBES):
            line.send(probe)
        line.flush(1.0)
        while line.receive() is not None:
            pass
    line.close()


def many_lines(target: Target) -> None:
    """Connect, send an identity and half a message, then nothing more; then disconnect."""
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        lines = [dialed(target) for _ in range(LINES)]
        for line in lines:
            line.send([b"\1" * 1000])
        for line in lines:
            line.close()


CASES: dict[str, Callable[[Target], None]] = {
    "64 MB there and back": large_messages,
    "64 MB answers that nobody reads": answers_unread,
    "small messages without end": small_talk,
    "200 connections at a time": many_lines,
}
