"""Parsing requests from bytes: split anywhere, in every legal form, at every limit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.http1.reader import (
    LONGEST_CHUNK_LINE,
    LONGEST_HEAD,
    LONGEST_KNOWN,
    LONGEST_LINE,
    LONGEST_TRAILER,
    MOST_BLANK_LINES,
    MOST_EXTENSIONS,
    MOST_HEADERS,
    HttpFault,
    Reader,
    RequestHead,
    _known_head,
)


class Found(NamedTuple):
    """A request that a reader returned."""

    head: RequestHead
    body: bytes


def requests_in(*parts: bytes, alike: bool = True) -> list[Found | tuple[int, str]]:
    """Return what a reader finds in these parts of a stream: requests, and possibly a fault.

    alike: it is asked first whether a part is a request like the last one.
    """
    reader, found = Reader(), list[Any]()
    head: RequestHead | None = None
    body = b""
    try:
        for part in parts:
            if alike and found and head is None and (whole := reader.alike(part)) is not None:
                found.append(Found(found[-1].head, whole))
                continue
            reader.feed(part)
            while True:
                if reader.whole:
                    if head is not None:
                        found.append(Found(head, body))
                    head, body = reader.head(), b""
                    if head is None:
                        break
                elif (data := reader.body()) is not None:
                    body += data
                elif not reader.whole:
                    break
    except HttpFault as fault:
        found.append((fault.status, fault.kind))
    return found


def only(data: bytes) -> Found:
    (found,) = requests_in(data)
    assert isinstance(found, Found)
    return found


def fault_of(data: bytes) -> int:
    """Return the status of the fault after any requests before it."""
    fault = requests_in(data)[-1]
    assert not isinstance(fault, Found), fault
    return fault[0]


POST = (
    b"POST /Evaluate?x=1 HTTP/1.1\r\nHost: farm:4242\r\nX-Two:  words here \r\n"
    b"Content-Length: 5\r\n\r\nhello"
)
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: farm\r\nTransfer-Encoding: Chunked\r\n\r\n"
    b'3\r\nabc\r\n0A ; name="value"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n'
)
GET = b"GET / HTTP/1.1\r\nHost: farm\r\n\r\n"
UPGRADE = (
    b"GET /u HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
)
STREAM = POST + CHUNKED + GET + b"\r\n" + UPGRADE + POST


def test_a_request_with_a_length() -> None:
    head, body = only(POST)
    assert head == RequestHead(
        "POST",
        b"/Evaluate?x=1",
        "1.1",
        [(b"host", b"farm:4242"), (b"x-two", b"words here"), (b"content-length", b"5")],
        {b"host": b"farm:4242", b"x-two": b"words here", b"content-length": b"5"},
        5,
        True,
    )
    assert body == b"hello"


def test_equal_heads_are_parsed_once_and_bodies_are_their_own() -> None:
    first, second = only(POST), only(POST[:-5] + b"world")
    assert first.head is second.head
    assert (first.body, second.body) == (b"hello", b"world")
    once, again = requests_in(POST + POST)
    assert isinstance(once, Found)
    assert isinstance(again, Found)
    assert once.head is again.head is first.head


def test_long_heads_and_faults_are_not_kept() -> None:
    padded = GET[:-2] + b"X-Long: " + b"a" * LONGEST_KNOWN + b"\r\n\r\n"
    _known_head.cache_clear()
    assert only(padded).head is not only(padded).head
    assert [fault_of(GET.replace(b"GET", b"BREW")) for _ in range(2)] == [501, 501]
    assert _known_head.cache_info().currsize == 0


def test_a_request_in_chunks() -> None:
    head, body = only(CHUNKED)
    assert (head.length, body) == (None, b"abc0123456789")


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket", b"TLS/1.0"])
def test_an_upgrade_is_a_request_like_any_other(upgrade: bytes) -> None:
    with_body = POST.replace(b"X-Two:", b"Connection: Upgrade\r\nUpgrade: %b\r\nX-Two:" % upgrade)
    found = requests_in(UPGRADE + with_body + with_body + GET)
    assert [one.head.target for one in found if isinstance(one, Found)] == [
        *(b"/u", b"/Evaluate?x=1", b"/Evaluate?x=1", b"/")
    ]


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_a_stream_may_be_cut_anywhere(cut: int) -> None:
    assert requests_in(STREAM[:cut], STREAM[cut:]) == requests_in(STREAM)


def test_a_stream_may_come_byte_by_byte() -> None:
    whole = requests_in(STREAM)
    bodies = [found.body for found in whole if isinstance(found, Found)]
    assert bodies == [b"hello", b"abc0123456789", b"", b"", b"hello"]
    assert requests_in(*[STREAM[i : i + 1] for i in range(len(STREAM))]) == whole


@pytest.mark.parametrize(
    ("version", "header", "lasts"),
    [
        (b"1.1", b"A: b", True),
        (b"1.1", b"Connection: close", False),
        (b"1.1", b"Connection: x, Close", False),
        (b"1.0", b"A: b", False),
        (b"1.0", b"Connection: keep-alive", False),
    ],
)
@pytest.mark.parametrize("body", [b"", b"abc"])
def test_whether_another_request_may_follow(
    version: bytes, header: bytes, lasts: bool, body: bytes
) -> None:
    head = b"POST / HTTP/%b\r\nHost: a\r\n%b\r\n" % (version, header)
    data = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    assert only(data).head.keep_alive is lasts


def test_nothing_is_read_ahead() -> None:
    reader = Reader()
    reader.feed(POST + GET * 1000)
    head = reader.head()
    assert head is not None
    assert reader.waiting == 5 + 1000 * len(GET)
    assert reader.left == 5
    assert reader.body() == b"hello"
    assert reader.whole
    assert reader.waiting == 1000 * len(GET)


def test_a_call_takes_one_chunk_at_most() -> None:
    reader = Reader()
    reader.feed(CHUNKED.partition(b"3\r\n")[0] + b"1\r\nx\r\n" * 100)
    assert reader.head() is not None
    before = reader.waiting
    assert reader.body() == b"x"
    assert before - reader.waiting == 4
    assert reader.left is None


@pytest.mark.parametrize(
    "target", [b"http://other:1/a?b=c", b"HTTPS://other:1/a?b=c", b"http://other:1?b=c"]
)
def test_a_target_that_names_the_host(target: bytes) -> None:
    head = only(b"GET %b HTTP/1.1\r\nHost: farm\r\n\r\n" % target).head
    assert head.target in (b"/a?b=c", b"/?b=c")
    assert head.headers[b"host"] == b"other:1"


def test_a_target_for_the_server_itself() -> None:
    assert only(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").head.target == b"*"


def post(*lines: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", *lines, b"", b""])


NO_REQUESTS = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a space first": b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL first": b"\0",
    "no version": b"GET /\r\n\r\n",
    "no target": b"GET\r\n\r\n",
    "two targets": b"GET / /x HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\n\r\n",
    "a lower-case method": b"\xffget / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes above 127 in the target": b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target that is no path": b"GET index HTTP/1.1\r\nHost: a\r\n\r\n",
    "another scheme": b"GET ftp://farm/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "a user in the target": b"GET http://me:secret@farm/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
    "no host beside a whole URL": b"GET http://farm/ HTTP/1.1\r\n\r\n",
    "bare LF after the request line": b"GET / HTTP/1.1\nHost: farm\r\n\r\n",
    "bare LF after a header": b"GET / HTTP/1.1\r\nHost: farm\nA: b\r\n\r\n",
    "bare LF all over": b"GET / HTTP/1.1\nHost: farm\n\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: a\r\nA: b\rc\r\n\r\n",
    "obs-fold": post(b"A: b", b" c"),
    "obs-fold first": b"GET / HTTP/1.1\r\nHost: a\r\n A: b\r\n\r\n",
    "a NUL in a header": post(b"A: \0"),
    "a control character in a header": post(b"A: \x01"),
    "a space before the colon": post(b"Content-Length : 3"),
    "no colon": post(b"broken header"),
    "no name": post(b": x"),
    "two hosts": post(b"Host: a", b"Host: a"),
    "two origins": post(b"Origin: http://farm", b"Origin: http://evil.example"),
    "two sites": post(b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Site: none"),
    "two lengths": post(b"Content-Length: 3", b"Content-Length: 3"),
    "a list of lengths": post(b"Content-Length: 3, 3"),
    "a negative length": post(b"Content-Length: -3"),
    "a length with a sign": post(b"Content-Length: +3"),
    "a length in hexadecimal": post(b"Content-Length: 0x3"),
    "an empty length": post(b"Content-Length: "),
    "a length that overflows": post(b"Content-Length: 99999999999999999999999"),
    "length and chunks": post(b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "chunks and length": post(b"Transfer-Encoding: chunked", b"Content-Length: 3"),
    "two codings": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "a coding more": post(b"Transfer-Encoding: gzip, chunked"),
    "a coding behind": post(b"Transfer-Encoding: chunked, identity"),
    "another coding": post(b"Transfer-Encoding: identity"),
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a vertical tab as space": post(b"Transfer-Encoding:\x0bchunked"),
    "blank lines": b"\r\n" * (MOST_BLANK_LINES + 1) + GET,
    "a bare CR first": b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_not_a_request_is_refused(data: bytes) -> None:
    """Including bytes that other programs parse differently, which smuggles requests past them."""
    assert fault_of(data) == 400
    assert requests_in(*[data[i : i + 1] for i in range(len(data))]) == [(400, "InvalidInput")]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"CONNECT farm:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
    ],
)
def test_what_is_not_served_has_a_status_of_its_own(data: bytes, status: int) -> None:
    assert fault_of(data) == status


BROKEN_CHUNKS = {
    "no size": b"\r\n",
    "a sign": b"+3\r\nabc\r\n",
    "a prefix": b"0x3\r\nabc\r\n",
    "not hexadecimal": b"g\r\n",
    "a size that overflows": b"f" * 16 + b"\r\n",
    "bare LF": b"3\nabc\r\n",
    "longer than its size": b"3\r\nabcd\r\n",
    "shorter than its size": b"3\r\nab\r\n0\r\n\r\n",
    "no line break behind": b"3\r\nabc0\r\n\r\n",
    "a NUL in an extension": b"3;\0\r\nabc\r\n",
    "a CR in an extension": b"3;a\rb\r\nabc\r\n",
    "a space first": b" 3\r\nabc\r\n",
    "a trailer without a name": b"0\r\n: x\r\n\r\n",
    "a trailer with bare LF": b"0\r\nA: x\n\r\n",
    "a folded trailer": b"0\r\nA: x\r\n y\r\n\r\n",
}


@pytest.mark.parametrize("chunks", BROKEN_CHUNKS.values(), ids=BROKEN_CHUNKS)
def test_broken_chunks_are_refused(chunks: bytes) -> None:
    data = CHUNKED.partition(b"3\r\n")[0] + chunks
    assert requests_in(data)[-1] == (400, "InvalidInput")
    assert requests_in(*[data[i : i + 1] for i in range(len(data))])[-1] == (400, "InvalidInput")


def with_headers(count: int) -> bytes:
    return post(*[b"A%d: b" % i for i in range(count - 1)])


def sized(size: int) -> bytes:
    """Return a request whose head has `size` bytes."""
    line = b"A: " + b"x" * 1000
    head = post(*[line] * (size // (len(line) + 2) - 1))
    return head.replace(b"A: x", b"A: x" + b"x" * (size - len(head)), 1)


def chunks(*lines: bytes) -> bytes:
    return CHUNKED.partition(b"3\r\n")[0] + b"".join(lines)


EXTENSION = b"1;" + b"x" * 509 + b"\r\nx\r\n"
TRAILER = b"Trailer: " + b"x" * 501 + b"\r\n"

BOUNDS = {
    "headers": (with_headers(MOST_HEADERS), with_headers(MOST_HEADERS + 1), 431),
    "bytes of a head": (sized(LONGEST_HEAD), sized(LONGEST_HEAD + 1), 431),
    "request line": (
        b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * (LONGEST_LINE - 16)),
        b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * (LONGEST_LINE - 15)),
        414,
    ),
    "blank lines": (b"\r\n" * MOST_BLANK_LINES + GET, b"\r\n" * (MOST_BLANK_LINES + 1) + GET, 400),
    "a chunk's line": (
        chunks(b"0;" + b"x" * (LONGEST_CHUNK_LINE - 4) + b"\r\n\r\n"),
        chunks(b"0;" + b"x" * (LONGEST_CHUNK_LINE - 3) + b"\r\n\r\n"),
        400,
    ),
    "extensions": (
        chunks(EXTENSION * (MOST_EXTENSIONS // 510), b"0\r\n\r\n"),
        chunks(EXTENSION * (MOST_EXTENSIONS // 510 + 1), b"0\r\n\r\n"),
        400,
    ),
    "trailers": (
        chunks(b"0\r\n", TRAILER * (LONGEST_TRAILER // 512), b"\r\n"),
        chunks(b"0\r\n", TRAILER * (LONGEST_TRAILER // 512 + 1), b"\r\n"),
        431,
    ),
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("size", [61, 1000, 1 << 20], ids="in parts of {}".format)
def test_each_bound_is_kept_however_the_bytes_come(bound: str, size: int) -> None:
    allowed, beyond, status = BOUNDS[bound]

    def cut(data: bytes) -> list[bytes]:
        return [data[at : at + size] for at in range(0, len(data), size)]

    assert isinstance(requests_in(*cut(allowed))[0], Found)
    assert requests_in(*cut(beyond))[0][0] == status


@pytest.mark.parametrize(
    ("beginning", "endless", "status"),
    [
        (b"GET /", b"x", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", b"A: b\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: ", b"b", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA:", b" ", 431),
        (chunks(b"0"), b"0", 400),
        (chunks(b"1;"), b"x", 400),
        (chunks(b"0\r\n"), b"A: b\r\n", 431),
        (chunks(b""), b"1;abcdefgh\r\nx\r\n", 400),
    ],
)
def test_what_never_ends_is_not_kept(beginning: bytes, endless: bytes, status: int) -> None:
    reader = Reader()
    reader.feed(beginning)

    def go_on() -> None:
        for _ in range((1 << 20) // len(endless * 100)):
            while reader.whole and reader.head() is not None:
                pass
            while not reader.whole and reader.body() is not None:
                pass
            assert reader.waiting <= LONGEST_HEAD
            reader.feed(endless * 100)

    with pytest.raises(HttpFault) as caught:
        go_on()
    assert caught.value.status == status


NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).filter(
    lambda name: name not in ("host", "content-length", "transfer-encoding", "connection", "expect")
)
VALUES = st.text("abcXYZ019 /;=,\"'()\t", max_size=20).map(str.strip)
BODIES = st.binary(max_size=60)


@st.composite
def request_bytes(draw: st.DrawFn) -> bytes:
    """Return a legal request of any kind."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"]))
    lines = [f"{method} /{draw(st.text('abc/%20?=&', max_size=20))} HTTP/1.1", "Host: farm"]
    lines += [f"{n}: {v}" for n, v in draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))]
    kind, body = draw(st.sampled_from(["none", "length", "chunks"])), draw(BODIES)
    if kind == "length":
        lines.append(f"content-length: {len(body)}")
    elif kind == "chunks":
        lines.append("transfer-encoding: chunked")
    data = "\r\n".join([*lines, "", ""]).encode()
    if kind == "length":
        return data + body
    if kind == "none":
        return data
    size = draw(st.integers(1, 20))
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return data + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


def as_h11_reads(data: bytes) -> list[tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]]:
    found = list[Any]()
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            found.append([event.method, event.target, list(event.headers), b""])
        elif isinstance(event, h11.Data):
            found[-1][3] += event.data
        elif isinstance(event, h11.EndOfMessage):
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
        elif event is h11.PAUSED:
            connection.start_next_cycle()
        else:
            return [tuple(one) for one in found]


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(request_bytes(), min_size=1, max_size=4), st.lists(st.integers(0, 600)))
def test_legal_requests_are_read_as_another_library_reads_them(
    requests: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(requests)
    ends = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    found = requests_in(*[data[a:b] for a, b in pairwise(ends)])
    assert [
        (one.head.method.encode(), one.head.target, one.head.fields, one.body)
        for one in found
        if isinstance(one, Found)
    ] == as_h11_reads(data)
    assert len(found) == len(requests)


PIECES = st.sampled_from(
    [
        *(POST, CHUNKED, GET, UPGRADE, b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"GET / "),
        *(b"HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: 3\r\n", b"0\r\n", b"ffff\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"1;x\r\n"),
    ]
)


LIKE = [POST, POST.replace(b"hello", b"world"), POST + b"\r\n", POST[:-5], b"hello", POST[:9]]


@given(st.lists(st.sampled_from([*LIKE, POST.replace(b"5", b"4"), CHUNKED, b"\r\n"]), max_size=9))
def test_a_request_like_the_last_is_read_as_any_other(parts: list[bytes]) -> None:
    assert requests_in(*parts) == requests_in(*parts, alike=False)


def test_an_old_client_sends_an_empty_line_behind_each_of_many_bodies() -> None:
    """Source: RFC 9112, 2.2."""
    reader = Reader()
    reader.feed(POST)
    assert reader.head() is not None
    assert reader.body() == b"hello"
    for _ in range(MOST_BLANK_LINES + 1):
        reader.feed(b"\r\n")
        assert reader.head() is None
        assert reader.alike(POST) == b"hello"


def test_a_request_like_the_last_is_recognised_if_it_is_whole_and_nothing_waits() -> None:
    reader = Reader()
    assert reader.alike(POST) is None
    reader.feed(POST)
    head = reader.head()
    assert reader.alike(POST) is None
    assert (reader.body(), reader.alike(POST[:-1])) == (b"hello", None)
    assert reader.alike(LIKE[1]) == b"world"
    reader.feed(POST[:9])
    assert (reader.head(), reader.alike(POST)) == (None, None)
    reader.feed(POST[9:])
    assert reader.head() == head


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=12), st.integers(1, 50))
def test_hostile_bytes_give_requests_and_at_most_one_fault(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    whole = requests_in(data)
    assert all(isinstance(one, Found) for one in whole[:-1])
    cut = requests_in(*[data[i : i + size] for i in range(0, len(data), size)])
    assert cut == whole


def test_too_many_headers_are_refused_before_the_head_ends() -> None:
    reader = Reader()
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * MOST_HEADERS)
    assert reader.head() is None
    reader.feed(b"a: b\r\na: b\r\n")
    with pytest.raises(HttpFault, match="too many headers") as caught:
        reader.head()
    assert caught.value.status == 431
