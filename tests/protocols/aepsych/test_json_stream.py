"""JSON objects from a stream: for every segmentation and separator, and in linear time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.protocols.aepsych import json_stream
from farm.protocols.aepsych.json_stream import (
    CHECKED_BYTES,
    MAX_DEPTH,
    SHOWN_BYTES,
    SKIMMED_BYTES,
    JsonObjects,
    Long,
    StreamFault,
)

LIMIT = 2**26

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)


def read(*pieces: bytes, limit: int = LIMIT) -> list[dict[str, Any] | StreamFault]:
    objects = JsonObjects(limit)
    found = []
    for piece in pieces:
        objects.feed(piece)
        while (value := objects.next()) is not None:
            assert not isinstance(value, Long)
            found.append(value)
    return found


def cut(data: bytes, points: list[int]) -> list[bytes]:
    places = [0, *sorted(min(point, len(data)) for point in points), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def error(data: bytes) -> str:
    (found,) = read(data)
    assert isinstance(found, StreamFault), found
    return found.error


STREAM = (
    b'{"type":"ask"}\n\r\n \xef\xbb\xbf{ "a" : [1, -2.5e-3 , "\\u00e9\\n\\"}{\\\\", '
    b"true,null,[],{}],"
    b'"b":{"c":[[0.5,1],[2,3]]} , "\xc3\xa9":NaN,"":-Infinity }{"type":"info"}\t'
)


STEPS = pytest.mark.parametrize(
    ("checked", "skimmed"),
    [(CHECKED_BYTES, SKIMMED_BYTES), (1, 3), pytest.param(7, 2, marks=pytest.mark.slow)],
)


@contextmanager
def steps(checked: int, skimmed: int) -> Iterator[None]:
    """Check the first `checked` bytes of objects, then search `skimmed` bytes per step.

    skimmed: 2 or more, because a backslash is read together with the byte after it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHECKED_BYTES", checked)
        patch.setattr(json_stream, "SKIMMED_BYTES", skimmed)
        yield


@STEPS
def test_every_split_point_of_a_stream(checked: int, skimmed: int) -> None:
    whole = read(STREAM)
    assert [sorted(found) for found in whole if isinstance(found, dict)] == [
        ["type"],
        ["", "a", "b", "é"],
        ["type"],
    ]
    with steps(checked, skimmed):
        for place in range(len(STREAM) + 1):
            assert repr(read(STREAM[:place], STREAM[place:])) == repr(whole), place
        assert repr(read(*(STREAM[i : i + 1] for i in range(len(STREAM))))) == repr(whole)


@STEPS
@given(st.lists(OBJECTS, max_size=4), st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_objects_come_out_as_they_went_in(
    checked: int, skimmed: int, values: list[dict[str, Any]], points: list[int], plain: bool
) -> None:
    data = b"\n".join(json.dumps(value, ensure_ascii=plain).encode() for value in values)
    with steps(checked, skimmed):
        assert read(*cut(data, points)) == values


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=3))
def test_no_bytes_are_too_strange(data: bytes, points: list[int]) -> None:
    for found in read(*cut(data, points)):
        assert isinstance(found, dict | StreamFault)


@given(OBJECTS, st.data())
def test_a_damaged_object_is_what_python_sees(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value).encode()
    place = data.draw(st.integers(0, len(text) - 1))
    text = text[:place] + data.draw(st.binary(max_size=2)) + text[place + 1 :]
    first = next(iter(read(text)), None)
    decoded = text.decode(errors="surrogateescape").lstrip(" \t\r\n")
    try:
        expected, end = json.JSONDecoder().raw_decode(decoded)
        decoded[:end].encode()  # bytes that are not UTF-8 may follow, but not stand in the object
    except ValueError:
        assert not isinstance(first, dict), "it is refused or waited for"
        return
    if isinstance(first, StreamFault) and isinstance(expected, dict):
        # Python parses 1e999 as infinite, and accepts a lone surrogate in a text.
        assert any(word in first.error for word in ("infinity", "surrogate"))
    else:
        assert first == expected or not isinstance(expected, dict)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"hello", "expected '{'"),
        (b"[1, 2]", "expected '{'"),
        (b"\xff\xfe\x80", "expected '{'"),
        (b"\x00", "expected '{'"),
        (b'{"type": ask', "expected a value at byte 9, received 'ask'"),
        (b'{"type": trux', "expected a value"),
        (b'{"a": 01', "expected a value"),
        (b'{"a": 1..', "expected a value"),
        (b'{"a": +1', "expected a value"),
        (b'{"a": -,', "expected a value"),
        (b'{"a": 1 2', "expected ',' or the end"),
        (b'{"a" "b"', "expected ':' at byte 5"),
        (b"{]", "expected a name in quotes or '}'"),
        (b'{"a":1,}', "expected a name in quotes at byte 7"),
        (b'{"a":[1,]', "expected a value at byte 8"),
        (b'{"a":[1}', "expected ',' or the end"),
        (b'{"a":[}', "expected a value or ']'"),
        (b'{"a":1]', "expected ',' or the end"),
        (b"{1", "expected a name in quotes or '}'"),
        (b'{"a": "\n', "line end or control character at byte 7"),
        (b'{"a": "\\x', "unknown escape"),
        (b'{"a": "\\u12g', "unknown escape"),
        (b'{"a": "\xff', "not UTF-8"),
        (b'{"a": "\xe9"}', "not valid UTF-8"),
        (b'{"a": 1e999}', "infinity"),
        (b'{"a": ' + b"1" * 5000, "more than 4000 digits"),
        (b'{"a":' * (MAX_DEPTH + 1), "nested more than 100 deep"),
    ],
)
def test_what_can_become_no_object_is_known_at_once(data: bytes, says: str) -> None:
    assert says in error(data)
    assert error(data).startswith("the message is not JSON: ")


@pytest.mark.parametrize(
    "data",
    [b"", b" \n", b"\xef", b"\xef\xbb", b"{", b'{"a', b'{"a\\', b'{"a\\u1', b'{"a"', b'{"a":']
    + [b'{"a":' + begun for begun in (b"-", b"0", b"1.", b"1e", b"1e-", b"tr", b"N", b"-Inf", b"[")]
    + [b'{"a":[1', b'{"a":[1,', b'{"a":[[1],{"b":', b'{"a":"\xc3'],
)
def test_what_can_become_an_object_is_waited_for(data: bytes) -> None:
    assert read(data) == []


BEGUN = b'{"a":"' + b"x" * CHECKED_BYTES + b'"'


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (b',"b":"\n', f"line end or control character at byte {len(BEGUN) + 6}"),
        (b',"b":' + b"[" * MAX_DEPTH, f"more than 100 deep at byte {len(BEGUN) + 4 + MAX_DEPTH}"),
        (b',"b":"' + b'\\"{' * SKIMMED_BYTES + b"\t", "line end or control character"),
        (b',"b":1e999}', "infinity"),
        (b',"b":[1}}', "the message is not JSON"),
        (b',"b":oops}', "the message is not JSON"),
        (b',"b":"\\"\\\\",}', "the message is not JSON"),
    ],
)
def test_a_mistake_far_behind_the_beginning(rest: bytes, says: str) -> None:
    """The mistake is detected at the end of the object, or of its line."""
    first, *others = read(BEGUN + rest + b"}\n" + b'{"type":"info"}')
    assert isinstance(first, StreamFault)
    assert says in first.error
    assert others[-1] == {"type": "info"}


def test_garbage_takes_its_line_with_it_and_lines_that_begin_no_object() -> None:
    after = {"type": "info"}
    for garbage in (b"hello", b'garbage {"type":"ask"}', b'{"a": oops}', b"one\ntwo\r\n\n three"):
        first, *rest = read(garbage + b'\n {"type":"info"}')
        assert isinstance(first, StreamFault)
        assert not first.close
        assert rest == [after], garbage
    # An object that is whole and wrong ends where it ends.
    first, *rest = read(b'{"a": 1e999}{"type":"info"}')
    assert isinstance(first, StreamFault)
    assert rest == [after]
    # A message of many lines, as written by hand, counts as one mistake, not as one per line.
    by_hand = b'{"type": "setup", "message": {"config_str": "\n[common]\nparnames = [x]\n"}}\n'
    first, *rest = read(by_hand + b'{"type":"info"}')
    assert isinstance(first, StreamFault)
    assert rest == [after]
    (found,) = read(b"x" * 1000)
    assert isinstance(found, StreamFault)
    assert found.received == "x" * SHOWN_BYTES, "it is shown by its beginning"


def test_an_object_over_the_limit_ends_the_stream() -> None:
    text = json.dumps({"a": "b" * 100}).encode()
    assert read(text, limit=len(text)) == [{"a": "b" * 100}]
    for data in (text, text[:-1]):
        (found,) = read(data + b" ", limit=len(text) - 2)
        assert isinstance(found, StreamFault)
        assert found.close
        assert f"more than {len(text) - 2} bytes" in found.error
    # Many small objects may be in the buffer at once.
    assert len(read(b'{"a":1}' * 100, limit=10)) == 100


LARGE: dict[str, Callable[[], Any]] = {
    "numbers": lambda: {"config": {"x": [0.123456789] * 200_000}},
    "pairs": lambda: {"config": {"x": [[0.125, 0.5]] * 150_000}},
    "text": lambda: {"blob": "a" * 2_500_000},
    "names": lambda: {str(i): [i] for i in range(120_000)},
    "objects": lambda: {"a": [{"x": 1.0}] * 150_000},
    "nested": lambda: {"a": [{"b": [{"c": 1}]}] * 120_000},
    "empty": lambda: {"a": [[], {}] * 250_000},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("size", [1_000, 65_536])
def test_large_objects_take_linear_time(kind: str, size: int) -> None:
    sent = LARGE[kind]()
    data = json.dumps(sent).encode()
    begin = time.process_time()
    (found,) = read(*(data[i : i + size] for i in range(0, len(data), size)))
    assert found == sent
    # 2.5 MB take 0.1 s; examining every byte again for each segment would take minutes.
    assert time.process_time() - begin < 3.0


def test_many_small_objects_in_one_segment_take_linear_time() -> None:
    begin = time.process_time()
    assert len(read(b'{"type":"ask"}' * 20_000)) == 20_000
    assert time.process_time() - begin < 3.0
