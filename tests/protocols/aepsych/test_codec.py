"""Messages of AEPsych: requests, and answers to other data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.protocols.aepsych.codec import (
    ANSWER_BYTES,
    TYPES,
    AepsychFramer,
    AepsychRequest,
    encode_answer,
    encode_error,
    read_long,
    read_value,
)
from farm.protocols.aepsych.json_stream import StreamFault


def received(*pieces: bytes) -> list[AepsychRequest | StreamFault]:
    framer = AepsychFramer()
    found = []
    for piece in pieces:
        framer.feed(piece)
        while (request := framer.next()) is not None:
            found.append(request)
    return found


def one(data: bytes) -> AepsychRequest:
    (request,) = received(data)
    assert isinstance(request, AepsychRequest), request
    return request


def fault(data: bytes) -> StreamFault:
    (found,) = received(data)
    assert isinstance(found, StreamFault), found
    return found


def test_requests_as_three_clients_write_them() -> None:
    python = one(b'{"message": {"num_points": 1}, "type": "ask"}')
    assert (python.type, python.message, python.extra) == ("ask", {"num_points": 1}, {})
    matlab = one(b'{"type":"ask","version":"0.01","metadata":{},"message":""}\n')
    assert (matlab.type, matlab.message, matlab.extra) == ("ask", {}, {})
    unity = one(
        b'{"message":{"config":{"x":[0.7]},"outcome":0.25},"type":"tell",'
        b'"extra_info":{"response_time":0.9,"trial":"a"}}'
    )
    assert unity.type == "tell"
    assert unity.extra == {"response_time": 0.9, "trial": "a"}
    assert unity.whole["extra_info"] == unity.extra
    assert one(b'{"type": "params"}').type == "parameters", "an older spelling"


@pytest.mark.parametrize("nothing", ["null", '""', "{}"])
def test_no_message_and_no_extra_info_are_empty_ones(nothing: str) -> None:
    request = one(f'{{"type": "tell", "message": {nothing}, "extra_info": {nothing}}}'.encode())
    assert (request.message, request.extra) == ({}, {})
    assert one(b'{"type": "info"}').message == {}
    assert one(b'{"type": "tell", "extra_info": "late"}').extra == {"extra_info": "late"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"message": {}}, "'type' is missing; expected one of setup, ask, tell"),
        ({"type": ["ask"]}, "'type' is a list"),
        ({"type": None}, "'type' is null"),
        ({"type": "update"}, "type 'update' is unknown"),
        ({"type": "x" * 1000}, "is unknown"),
        ({"type": "setup", "message": "text"}, "'message' of setup is a string"),
        ({"type": "setup", "message": [1]}, "'message' of setup is a list"),
    ],
)
def test_objects_that_are_no_request(data: dict[str, Any], says: str) -> None:
    found = fault(json.dumps(data).encode())
    assert says in found.error
    assert len(found.error) < 300
    assert found.received == data
    assert not found.close


@pytest.mark.parametrize("data", [b"[1, 2, 3]", b"5", b"hello", b"\xff\xfe"])
def test_what_is_no_object_is_answered_too(data: bytes) -> None:
    found = fault(data)
    assert "a message is an object" in found.error
    assert json.loads(encode_error(found.error, found.received))["server_error"] == found.error


HTTP = b"POST / HTTP/1.1\r\nHost: localhost:5555\r\nContent-Type: text/plain\r\n\r\n"


@pytest.mark.parametrize("head", [HTTP, b" \r\n" + HTTP, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_the_body_of_an_http_request_is_no_message(head: bytes) -> None:
    """However it is split, and however much of it has arrived when it is recognised."""
    whole = head + b'{"type": "info"}\n{"type": "exit"}'
    for pieces in ([whole], [whole[i : i + 1] for i in range(len(whole))]):
        (fault,) = received(*pieces)
        assert isinstance(fault, StreamFault)
        assert fault.close
    first, *later = received(b'{"type":"info"}\n' + head + b'\n{"type":"info"}')
    assert isinstance(first, AepsychRequest), "which makes it no HTTP"
    assert not any(isinstance(fault, StreamFault) and fault.close for fault in later)
    assert isinstance(later[-1], AepsychRequest)


def test_answers_are_ascii_on_one_line_without_nan_or_negative_zero() -> None:
    answer = {"a": -0.0, "b": [math.nan, -1.5, (math.inf,)], "é": "μ\n", "n": None, "t": True}
    assert encode_answer(answer) == (
        b'{"a":0.0,"b":[null,-1.5,[null]],"\\u00e9":"\\u03bc\\n","n":null,"t":true}'
    )


@pytest.mark.parametrize(
    "message",
    [
        {"config_str": "[common]\n" * 10_000},
        {"config": {"x": [0.123456789] * 100_000}, "outcome": list(range(100_000))},
        {"config": {f"x{i}": [i] for i in range(5_000)}},
        {"\u03bc" * 5_000: "\u03bc" * 5_000},
        {str(i): {str(k): "\U0001f600" * 500 for k in range(30)} for i in range(30)},
    ],
)
def test_an_error_fits_what_clients_read(message: dict[str, Any]) -> None:
    whole = {"type": "tell", "message": message}
    data = encode_error("parameter 'y' is missing in config", whole)
    assert len(data) <= ANSWER_BYTES
    answer = json.loads(data)
    assert answer["server_error"] == "parameter 'y' is missing in config"
    assert answer["message"]["type"] == "tell"
    assert len(encode_error("\u03bc" * 10_000, whole)) <= ANSWER_BYTES


def test_a_long_request_is_repeated_by_its_beginnings() -> None:
    text = "[common]\nparnames = [x]\n" + "# and so on\n" * 1000
    setup = json.loads(encode_error("no", {"type": "setup", "message": {"config_str": text}}))
    assert setup["message"]["message"]["config_str"] == text[:400] + "..."
    message = {"config": {"x": list(range(5000))}, **{f"k{i:04}": i for i in range(700)}}
    tell = json.loads(encode_error("no", {"type": "tell", "message": message}))["message"]
    values = tell["message"]["config"]["x"]
    assert values == [*range(40), "... 5000 entries in all"]
    assert tell["message"]["..."] == "701 entries in all"
    assert len(tell["message"]) == 41
    short = {"type": "tell", "message": {"note": "a" * 3900}, "version": "0.01"}
    told = json.loads(encode_error("no", short))
    assert told == {"server_error": "no", "message": short}, "what fits is left alone"
    # Not even its parts fit, so only its type remains.
    wide = {str(i): {str(k): "\U0001f600" * 50 for k in range(30)} for i in range(30)}
    deep = {"type": "tell", "message": {str(i): wide for i in range(30)}}
    assert json.loads(encode_error("no", deep))["message"] == {"type": "tell"}


class Long(list[Any]):
    """A list whose parts may be taken, but which must not be iterated over."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all of it was looked at")


@pytest.mark.parametrize("beside", [{}, {"note": "a" * 5000}])
def test_all_of_a_long_request_is_not_looked_at(beside: dict[str, Any]) -> None:
    whole = {"type": "tell", "message": {"config": {"x": Long([0.5] * 5000)}, **beside}}
    answer = json.loads(encode_error("no", whole))
    assert answer["message"]["message"]["config"]["x"][-1] == "... 5000 entries in all"


@pytest.mark.parametrize(
    ("value", "count"),
    [({}, 0), ({"a": 1}, 1), ({"a": [1, [2, 3], {"b": None}]}, 1 + 3 + 2 + 1), ({"a": "text"}, 1)],
)
def test_values_are_counted_however_they_are_nested(
    value: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(value).encode()
    monkeypatch.setattr("farm.protocols.aepsych.codec.MAX_VALUES", count)
    assert read_long(text) == value
    monkeypatch.setattr("farm.protocols.aepsych.codec.MAX_VALUES", count - 1)
    refused = read_value(read_long(text))
    assert isinstance(refused, StreamFault)
    assert f"has {count} values; expected at most {count - 1}" in refused.error


MESSAGES = st.dictionaries(
    st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False) | st.lists(st.integers(-5, 5)) | st.text(),
    max_size=3,
)


@given(st.sampled_from(TYPES), MESSAGES, MESSAGES, st.integers(0, 200))
def test_requests_are_read_and_answered(
    type: str, message: dict[str, Any], extra: dict[str, Any], place: int
) -> None:
    data = json.dumps({"type": type, "message": message, "extra_info": extra}).encode()
    (request,) = received(data[:place], data[place:])
    assert isinstance(request, AepsychRequest)
    assert (request.type, request.message, request.extra) == (type, message, extra)
    assert json.loads(encode_answer({"got": message})) == {"got": message}
