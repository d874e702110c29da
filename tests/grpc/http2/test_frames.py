"""HTTP/2 frames, compared with the packages hyperframe and hpack."""

from __future__ import annotations

import pytest
from hpack import Decoder
from hyperframe.frame import DataFrame, Frame, PingFrame

from farm.grpc.http2.frames import (
    DATA,
    END_STREAM,
    PING,
    ConnectionFailed,
    frame,
    literal,
    without_padding,
)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 2**24 - 1])
def test_frames_are_read_by_others(size: int) -> None:
    data = frame(DATA, END_STREAM, 7, bytes(size))
    read, length = Frame.parse_frame_header(memoryview(data)[:9])
    assert isinstance(read, DataFrame)
    assert (length, read.stream_id, set(read.flags)) == (size, 7, {"END_STREAM"})
    assert len(data) == 9 + size
    assert frame(PING, 0, 0, b"12345678") == PingFrame(opaque_data=b"12345678").serialize()


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 1000, 20_000])
def test_headers_of_every_length_are_read_by_others(size: int) -> None:
    name, value = b"n" * max(size, 1), b"v" * size
    assert [tuple(h) for h in Decoder().decode(literal(name, value), raw=True)] == [(name, value)]


def test_padding_is_taken_off() -> None:
    assert without_padding(b"\x02abc\0\0") == b"abc"
    assert without_padding(b"\x00") == b""
    for wrong in (b"", b"\x01", b"\x05abcd"):
        with pytest.raises(ConnectionFailed, match="padding"):
            without_padding(wrong)
