"""Attacks by large counts: calls of millions of rows, messages of millions of calls or ids."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

import farm
from farm.call import Buffer, Call, Hints, Operation
from farm.transports.connection import read_connection
from farm.transports.dial import Dialer
from farm.transports.identity import CLIENT_PREFIX
from farm.wire import messages as wire
from farm.wire.bounds import MOST_LISTS, MOST_VALUES
from hostile_target import Target

ROWS = 4_000_000
MIP_ENTRIES = (65_535, 34_465)
POINTS = 100_000
CALLS = 1_000_000
TRIALS = 100_000
WAIT_S = 1.0
"""Time after which an attacker disconnects; its answer would take minutes."""


def post(target: Target, path: str, body: bytes, headers: dict[str, str]) -> None:
    """Send a request, and read the part of the answer that arrives within `WAIT_S`."""
    connection = http.client.HTTPConnection(*target.http, timeout=target.seconds + WAIT_S)
    try:
        connection.request(
            "POST", path, body, {"Authorization": f"Bearer {target.token}"} | headers
        )
        assert connection.sock is not None
        connection.sock.settimeout(target.seconds)
        connection.getresponse().read()
    finally:
        connection.close()


@cache
def json_rows() -> bytes:
    """Return a KServe request of 15 MiB for 4 million rows of one number."""
    numbers = b",".join([b"1.5"] * ROWS)
    head = {"name": "x", "shape": [ROWS, 1], "datatype": "FP64"}
    return b'{"inputs":[' + json.dumps(head).encode()[:-1] + b',"data":[' + numbers + b"]}]}"


def kserve_json(target: Target) -> None:
    """Send as many rows as fit 15 MiB of JSON."""
    post(target, "/v2/models/single/infer", json_rows(), {"Content-Type": "application/json"})


def kserve_binary(target: Target) -> None:
    """Send the same rows as raw bytes."""
    tensor = {"name": "x", "shape": [ROWS, 1], "datatype": "FP64"}
    data = np.full(ROWS, 1.5).tobytes()
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(data)}}]})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    post(target, "/v2/models/single/infer", head.encode() + data, headers)


def points(target: Target) -> None:
    """Send a great number of points, to be answered line by line."""
    body = json.dumps({"inputs": [[[1.5]]] * POINTS}).encode()
    post(target, "/farm/models/single/evaluate", body, {"Content-Type": "application/json"})


def mip_packet(entries: int) -> bytes:
    """Return an inference of `entries` entries of one number."""
    value = struct.pack("!2L", 2, 3) + b"[1]"
    payload = struct.pack("!2BH", 1, 0, entries) + value * entries
    return struct.pack("!4BL", 0, 2, 0, 0, len(payload)) + payload


def mip(target: Target) -> None:
    """Send 100,000 entries in two packets."""
    with socket.create_connection(target.mip, target.seconds) as connection:
        connection.sendall(b"".join(map(mip_packet, MIP_ENTRIES)))
        connection.settimeout(target.seconds)
        while connection.recv(1 << 20):
            pass


def native_map(target: Target) -> None:
    """Send a map of a million points, as a client of farm does."""
    end = time.monotonic() + target.seconds
    with farm.connect(target.connection_file) as client:
        many = client.model("single").map(({"x": [1.5]} for _ in range(CALLS)), in_flight=CALLS)
        for _ in many:
            if time.monotonic() > end:
                return


def alike(count: int) -> Iterator[tuple[int, Call]]:
    call = Call("single", Operation.EVALUATE, (np.array([1.5]),))
    return ((number, call) for number in range(1, count + 1))


def native_message(target: Target, count: int, kind: wire.Kind) -> None:
    """Send `count` calls in one message, or cancel all of them in one, repeatedly."""
    name = f"{CLIENT_PREFIX.decode()}hostile/{time.monotonic_ns()}"
    line = Dialer(read_connection(target.connection_file), name).dial()
    end = time.monotonic() + WAIT_S

    def say(frames: list[Buffer]) -> None:
        line.send(frames)
        line.flush(target.seconds)

    try:
        say(wire.encode_calls(alike(count), Hints()))
        if kind is wire.Kind.CANCEL:
            say(wire.encode(wire.Kind.CANCEL, list(range(1, CALLS + 1))))
        while time.monotonic() < end and not line.ended():
            if line.receive() is None:
                time.sleep(0.001)
        say(wire.encode(wire.Kind.LEAVE))
    finally:
        line.close()


def native_nonsense(target: Target, data: Any) -> None:
    """Send JSON at the limits of a client's message, or above them, repeatedly."""
    name = f"{CLIENT_PREFIX.decode()}hostile/{time.monotonic_ns()}"
    line = Dialer(read_connection(target.connection_file), name).dial()
    try:
        for _ in range(4):
            line.send(wire.encode(wire.Kind.CANCEL, data))
            line.flush(target.seconds)
        line.send(wire.encode(wire.Kind.LEAVE))
        line.flush(target.seconds)
    finally:
        line.close()


def aepsych_tell(target: Target) -> None:
    """Send one tell of 100,000 trials."""
    config = (
        "[common]\nparnames = [x]\nlb = [0]\nub = [1]\nstimuli_per_trial = 1\n"
        "outcome_types = [continuous]\nstrategy_names = [s]\n"
        "[s]\nmin_asks = 9\ngenerator = SobolGenerator\n"
    )
    xs = [number / TRIALS for number in range(TRIALS)]
    with socket.create_connection(target.aepsych, 60) as server:
        for kind, message in (
            ("setup", {"config_str": config}),
            ("tell", {"config": {"x": xs}, "outcome": xs}),
        ):
            server.sendall(json.dumps({"type": kind, "message": message}).encode())
            answer = server.recv(65536)
            if b"server_error" in answer:
                raise ValueError(answer[:300])


CASES: dict[str, Callable[[Target], None]] = {
    "KServe, 4 million rows as JSON": kserve_json,
    "KServe, 4 million rows as bytes": kserve_binary,
    "100,000 points line by line": points,
    "MIP, 100,000 entries": mip,
    "native map of a million": native_map,
    "native, 90,000 calls a message": partial(native_message, count=90_000, kind=wire.Kind.CALLS),
    "native, a million taken back": partial(native_message, count=50_000, kind=wire.Kind.CANCEL),
    "native, as many lists as may be": partial(native_nonsense, data=[[]] * (MOST_LISTS - 1)),
    "native, as many values as may be": partial(native_nonsense, data=["a"] * MOST_VALUES),
    "native, more lists than may be": partial(native_nonsense, data=[[]] * 2_000_000),
    "AEPsych, tell of 100,000 trials": aepsych_tell,
}
