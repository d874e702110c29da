"""Coverage-guided fuzzing of the codecs of MIP, GraphPipe, AEPsych and HTTP/1.1.

    pip install atheris                                     # Python 3.11 to 3.13, Linux and macOS
    python tests/support/protocol_fuzz.py mip -max_total_time=60
    python tests/support/protocol_fuzz.py graphpipe -max_total_time=60
    python tests/support/protocol_fuzz.py aepsych -max_total_time=60
    python tests/support/protocol_fuzz.py http1 -max_total_time=60

For any bytes, a codec must return a value or raise an error of its own; anything else ends the
program with the bytes that caused it. Options of libFuzzer follow the name. Memory is bounded here,
because libFuzzer counts the peak inherited from the parent process as its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["farm"]):
    from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
    from farm.errors import FarmError
    from farm.http1 import reader as http1
    from farm.protocols.aepsych import codec as aepsych
    from farm.protocols.aepsych import json_stream
    from farm.protocols.graphpipe import client as graphpipe_client
    from farm.protocols.graphpipe import codec as graphpipe
    from farm.protocols.graphpipe.endpoint import Repeated
    from farm.protocols.graphpipe.tensors import GraphpipeFault
    from farm.protocols.mip import calls as mip_calls
    from farm.protocols.mip import packets as mip

import numpy as np

LIMIT = 1 << 16
MEMORY = 1 << 30  # beyond the imports' memory: a codec that allocates more gets a MemoryError
NUMBERS, TEXT = TensorInfo("x", (2,)), TensorInfo("t", (1,), "bytes")
MODELS = (
    ModelInfo("numbers", (NUMBERS,), (NUMBERS,)),
    ModelInfo("texts", (TEXT, TensorInfo("n", (-1,), "bytes")), (TEXT,)),
    ModelInfo("varies", (TensorInfo("x", (-1, 2), "int32"),), (TensorInfo("y", (-1,), "float32"),)),
)


def fuzz_mip(data: bytes) -> None:
    """A stream of requests, split where its first byte says, and the same bytes as an answer."""
    whole = _framed(data[1:])
    cut = data[0] if data else 0
    assert _framed(data[1:][:cut], data[1:][cut:]) == whole
    for asked in whole:
        if not isinstance(asked, mip.PacketRequest) or asked.kind is not mip.PacketKind.INFERENCE:
            continue
        for info in MODELS:
            try:
                call = mip_calls.decode_call(bytes(asked.payload), info)
            except FarmError as error:
                mip.encode_farm_error(error)
                continue
            assert sum(x.nbytes for x in call.inputs) <= 8 * len(asked.payload)
            _mip_answer(bytes(asked.payload), info)


def _framed(*parts: bytes) -> list[mip.PacketRequest | mip.MipFault]:
    framer, found = mip.MipFramer(LIMIT), []
    for part in parts:
        framer.feed(part)
        while (item := framer.next()) is not None:
            found.append(item)
    return found


def _mip_answer(payload: bytes, info: ModelInfo) -> None:
    for rows in (None, 2):
        with contextlib.suppress(FarmError):
            mip_calls.decode_result(payload, info, rows)


def fuzz_graphpipe(data: bytes) -> None:
    """A request to each model, and the same bytes as an answer and as metadata."""
    for info in MODELS:
        try:
            asked = graphpipe.decode_request(data)
            if asked is not None:
                call, wish = graphpipe.call_of(asked, info)
                assert sum(x.nbytes for x in call.inputs) <= 2 * len(data)
                _like_one_before(data, info, call, wish)
        except (FarmError, GraphpipeFault) as error:
            graphpipe.encode_error(error)
        with contextlib.suppress(FarmError):
            graphpipe_client.decode_result(info, 200, data)
    with contextlib.suppress(FarmError):
        graphpipe_client.decode_metadata(200, data)


REPEATED = Repeated()


def _like_one_before(data: bytes, info: ModelInfo, call: Call, wish: graphpipe.Wish) -> None:
    found = REPEATED.call_of(data, info)
    if found is not None:
        assert [(x.shape, x.tobytes()) for x in found[0].inputs] == [
            (x.shape, x.tobytes()) for x in call.inputs
        ]
        assert (found[0].config, found[0].rows) == (call.config, call.rows)
        assert list(found[1]) == list(wish)
    REPEATED.keep(data, info, call, wish)


def fuzz_aepsych(data: bytes) -> None:
    """A stream of requests, split where its first byte says: equal up to the first error."""
    whole = _requests(data[1:])
    cut = _requests(data[1:][: data[0] if data else 0], data[1:][data[0] if data else 0 :])
    for one, other in zip(whole, cut, strict=False):
        if isinstance(one, json_stream.StreamFault) or isinstance(other, json_stream.StreamFault):
            break
        assert repr(one) == repr(other)
    for found in whole:
        received = found.received if isinstance(found, json_stream.StreamFault) else found.whole
        answer = aepsych.encode_error("no", received)
        assert len(answer) <= aepsych.ANSWER_BYTES
        assert json.loads(answer)["server_error"]


def _requests(*parts: bytes) -> list[aepsych.AepsychRequest | json_stream.StreamFault]:
    framer, found = aepsych.AepsychFramer(LIMIT), []
    for part in parts:
        framer.feed(part)
        while (item := framer.next()) is not None:
            found.append(item)
    return found


def _seeds_of_aepsych() -> list[bytes]:
    tell = {"config": {"x": [0.5, [1e-3]], "y": "2"}, "outcome": [1, None, True], "é": '"\\'}
    told = {"type": "tell", "message": tell, "extra_info": {"rt": 0.25}}
    one = json.dumps(told).encode()
    return [
        *(b"\7" + json.dumps({"type": name, "message": {}}).encode() for name in aepsych.TYPES),
        b"\50" + one + b"\n" + one,
        b"\3\xef\xbb\xbf" + one.replace(b"0.5", b"NaN") + b" hello\n" + one,
        b"\2" + b'{"type":"ask","message":null}{"type":5}{"a":[{"b":[[1,2],[3]]}]}',
    ]


def fuzz_http1(data: bytes) -> None:
    """A stream of requests, split where its first byte says: equal up to the first error."""
    cut, stream = data[0] if data else 0, data[1:]
    whole = _http_requests(stream)
    assert _http_requests(stream[:cut], stream[cut:]) == whole


def _http_requests(*parts: bytes) -> list[object]:
    reader, found = http1.Reader(), list[object]()
    try:
        for part in parts:
            reader.feed(part)
            while True:
                if reader.whole:
                    head = reader.head()
                    if head is None:
                        break
                    assert len(head.fields) <= http1.MOST_HEADERS
                    found.append(head)
                elif (data := reader.body()) is not None:
                    found.append(data)
                elif not reader.whole:
                    break
            assert reader.waiting <= http1.LONGEST_HEAD
    except http1.HttpFault as fault:
        found.append((fault.status, fault.kind))
    joined: list[object] = []
    for item in found:  # parts of a body depend on the splitting
        if isinstance(item, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def _seeds_of_http1() -> list[bytes]:
    post = b"POST /Evaluate?x HTTP/1.1\r\nHost: farm:1\r\nContent-Length: 3\r\n\r\nabc"
    chunks = b"3;x=y\r\nabc\r\n0a\r\n0123456789\r\n0\r\nA: b\r\n\r\n"
    chunked = b"PUT http://farm/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    return [
        b"\x50" + post + chunked + post,
        b"\x30" + chunked + upgrade + b"\r\n" + chunked,
        b"\1" + b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + upgrade,
        b"\2" + b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\3" + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]


def _calls() -> list[tuple[Call, ModelInfo]]:
    texts = np.array([b"hello"], object), np.array([b"a", b"bc"], object)
    return [
        (Call("numbers", Operation.EVALUATE, (np.array([1.0, 2.5]),)), MODELS[0]),
        (Call("numbers", Operation.EVALUATE, (np.ones((3, 2)),), rows=3), MODELS[0]),
        (Call("texts", Operation.EVALUATE, texts, '{"a":1}'), MODELS[1]),
        (Call("varies", Operation.EVALUATE, (np.ones((2, 2), np.int32),)), MODELS[2]),
    ]


def _seeds_of_mip() -> list[bytes]:
    seeds = [bytes([5]) + mip_calls.encode_call(call, info) for call, info in _calls()]
    return [
        *seeds,
        b"\3" + mip.PING + b"GET /",
        b"\0" + mip.encode_error(mip.ErrorCode.SHAPE, "no"),
    ]


def _seeds_of_graphpipe() -> list[bytes]:
    seeds = [graphpipe_client.encode_call(call, info) for call, info in _calls()]
    seeds += [graphpipe.encode_metadata(info) for info in MODELS]
    answer = graphpipe.encode_result([0], MODELS[0], Result((np.ones(2),)))
    failed = graphpipe.encode_error(FarmError.kinds["ModelFailed"]("no"))
    return [*seeds, answer, failed, graphpipe_client.METADATA_REQUEST]


TARGETS: Mapping[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "mip": (fuzz_mip, _seeds_of_mip),
    "graphpipe": (fuzz_graphpipe, _seeds_of_graphpipe),
    "aepsych": (fuzz_aepsych, _seeds_of_aepsych),
    "http1": (fuzz_http1, _seeds_of_http1),
}


def bound_memory() -> None:
    """Let this process use MEMORY more than now (Linux counts private mappings as data)."""
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = next(x for x in status.read_text().splitlines() if x.startswith("VmData"))
        limit = int(kilobytes.split()[1]) * 1024 + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    bound_memory()
    name, *options = sys.argv[1:]
    target, seeds = TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds()):
            (Path(folder) / str(number)).write_bytes(seed)
        os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")
        atheris.Setup([sys.argv[0], "-rss_limit_mb=0", *options, folder], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
