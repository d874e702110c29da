"""The id that a request gives its call: which headers, in which form."""

from __future__ import annotations

import pytest

from farm.call import LONGEST_CALL_ID, Call, Operation
from farm.http1.call_ids import call_id_of, call_ids, trace_parent_of
from farm.http1.request import hints_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
"""The example of W3C Trace Context, section 3.2.4."""


@pytest.mark.parametrize(
    ("headers", "call_id"),
    [
        ({}, ""),
        ({b"x-request-id": b"a-1"}, "a-1"),
        ({b"traceparent": PARENT}, TRACE),
        ({b"traceparent": PARENT, b"x-request-id": b"mine"}, "mine"),
        ({b"traceparent": PARENT, b"x-request-id": b""}, TRACE),
        ({b"traceparent": b"cc" + PARENT[2:] + b"-what-comes-later"}, TRACE),
        ({b"traceparent": b"ff" + PARENT[2:]}, ""),
        ({b"traceparent": PARENT.replace(TRACE.encode(), b"0" * 32)}, ""),
        ({b"traceparent": PARENT.replace(b"00f067aa0ba902b7", b"0" * 16)}, ""),
        ({b"traceparent": PARENT.upper().replace(b"0", b"0")}, ""),
        ({b"traceparent": b"00-1-2-3"}, ""),
        ({b"x-request-id": b"x" * LONGEST_CALL_ID}, "x" * LONGEST_CALL_ID),
        ({b"x-request-id": b"x" * (LONGEST_CALL_ID + 1)}, ""),
    ],
)
def test_ids_of_requests(headers: dict[bytes, bytes], call_id: str) -> None:
    assert call_id_of(headers) == call_id
    assert hints_of(headers, "10.0.0.1", "").call_id == call_id


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (PARENT, PARENT),
        (b"cc" + PARENT[2:] + b"-what-comes-later", b"cc" + PARENT[2:]),
        (b"ff" + PARENT[2:], b""),
        (b"00-1-2-3", b""),
        (None, b""),
    ],
)
def test_the_parent_span_of_requests(header: bytes | None, parent: bytes) -> None:
    headers = {b"x-request-id": b"a-1"} | ({} if header is None else {b"traceparent": header})
    assert trace_parent_of(headers) == parent.decode()
    hints = hints_of(headers, "10.0.0.1", "")
    assert hints.trace_parent == parent.decode()
    origin = hints.named(Call("m", Operation.EVALUATE)).origin
    assert origin == ("a-1", "10.0.0.1", parent.decode())


@pytest.mark.parametrize(
    "bad", [b"a b", b"a\tb", b"a\x1b[31m", "\u00e4".encode(), b"a\x7f", b"a\n"]
)
def test_texts_that_are_not_visible_ascii_are_no_ids(bad: bytes) -> None:
    assert call_id_of({b"x-request-id": bad}) == ""


def test_made_ids_differ_also_between_farms() -> None:
    one, other = call_ids(), call_ids()
    made = [one(), one(), other(), other()]
    assert len(set(made)) == 4
    assert [call_id_of({b"x-request-id": each}) for each in made] == [m.decode() for m in made]
