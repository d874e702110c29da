"""Cases of `hostile.py`: requests that are slow to decode, and answers that are slow to encode."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from functools import cache, partial

from hostile_target import Target

MIB = 1 << 20


@cache
def numbers(mib: int) -> bytes:
    """Return a JSON list of numbers of `mib` MiB."""
    few = ",".join(repr(random.random()) for _ in range(50_000)).encode()
    return b"[" + b",".join([few] * (mib * MIB // len(few))) + b"]"


@cache
def umbridge(mib: int) -> bytes:
    return b'{"name":"echo","input":[%b]}' % numbers(mib)


@cache
def kserve(mib: int) -> bytes:
    data = numbers(mib)
    head = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[%d],"data":' % (data.count(b",") + 1)
    return head + data + b"}]}"


@cache
def points(mib: int) -> bytes:
    return b'{"inputs":[%b]}' % b",".join([b"[[0.12345678]]"] * (mib * MIB // 15))


@cache
def few_points(mib: int) -> bytes:
    return b'{"inputs":[[%b]]}' % numbers(mib)


@cache
def nested(mib: int) -> bytes:
    return b'{"name":"echo","input":[%b]}' % b",".join(
        [b"[" * 200 + b"]" * 200] * (mib * MIB // 401)
    )


@cache
def texts() -> bytes:
    data = b",".join([b'"1.0"'] * 300_000)
    return b'{"inputs":[{"name":"x","datatype":"FP64","shape":[300000],"data":[%b]}]}' % data


@cache
def literal(mib: int) -> bytes:
    return b'{"name":"echo","input":[%b,[NaN]]}' % numbers(mib)


@cache
def bomb() -> bytes:
    packer = zlib.compressobj(9)
    return b"".join([packer.compress(bytes(MIB)) for _ in range(1000)]) + packer.flush()


def post(target: Target, path: str, body: bytes, headers: str = "", read: int = 1 << 30) -> None:
    """Send one request over a new connection; read its answer to the end."""
    with socket.create_connection((target.host, target.http_port), 120) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {target.token}\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode()
        )
        connection.sendall(body)
        while read > 0 and (data := connection.recv(MIB)):
            read -= len(data)


def at_once(case: Callable[[Target], None], clients: int) -> Callable[[Target], None]:
    """Run the case from several clients at once."""

    def several(target: Target) -> None:
        threads = [threading.Thread(target=case, args=(target,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return several


def http(path: str, body: Callable[[], bytes], headers: str = "") -> Callable[[Target], None]:
    return lambda target: post(target, path, body(), headers)


def mip(target: Target) -> None:
    """Send an inference of 65,535 entries of a few bytes."""
    value = struct.pack("!2L", 2, 3) + b"[1]"
    payload = struct.pack("!2BH", 1, 1, 65535) + value * 65535
    with socket.create_connection((target.host, target.mip_port), 120) as connection:
        connection.sendall(struct.pack("!4BL", 0, 2, 0, 0, len(payload)) + payload)
        connection.recv(65536)


def aepsych(target: Target, part: str = "9.25") -> None:
    """Send an unsolicited message of 60 MiB."""
    body = '{"type":"tell","message":{"config":{"x":[' + ",".join(
        [part] * (60 * MIB // (len(part) + 1))
    )
    with socket.create_connection((target.host, target.aepsych_port), 120) as connection:
        connection.sendall((body + ']},"outcome":1}}').encode())
        connection.recv(65536)


def aepsych_tells(target: Target) -> None:
    """Send a message of 20 MiB of trials."""
    tell = {"type": "tell", "message": {"config": {"x": [0.5] * 4_000_000}, "outcome": 1}}
    with socket.create_connection((target.host, target.aepsych_port), 120) as connection:
        connection.sendall(json.dumps(tell).encode())
        connection.recv(65536)


@cache
def typed_numbers(count: int) -> bytes:
    """Return a ModelInferRequest with typed contents instead of raw tensors, as a gRPC message."""
    from farm.protocols.kserve.grpc.codec import messages

    message = messages()["inference.ModelInferRequest"](model_name="echo")
    message.inputs.add(name="x", datatype="FP64", shape=[count])
    message.inputs[0].contents.fp64_contents.extend([0.5] * count)
    return bytes(message.SerializeToString())


def grpc_typed(target: Target) -> None:
    """Send 48 MiB of typed contents, answered in the same form."""
    import grpc

    limits = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    with grpc.insecure_channel(f"{target.host}:{target.grpc_port}", options=limits) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        method(
            typed_numbers(6_000_000),
            metadata=[("authorization", f"Bearer {target.token}")],
            timeout=120,
        )


EVALUATE, INFER = "/Evaluate", "/v2/models/echo/infer"
FARM = "/farm/models/echo/evaluate"
ECHO_BINARY = (
    b'{"inputs":[{"name":"x","datatype":"FP64","shape":[8388608],'
    b'"parameters":{"binary_data_size":67108864}}]}'
)


def binary_to_json(target: Target) -> None:
    """Send 64 MiB of numbers as raw bytes, answered as JSON."""
    head = f"Inference-Header-Content-Length: {len(ECHO_BINARY)}\r\n"
    post(target, INFER, ECHO_BINARY + raw(), head)


@cache
def raw() -> bytes:
    return random.randbytes(8 * MIB).replace(b"\xff", b"\x11") * 8


CASES: dict[str, Callable[[Target], None]] = {
    "UM-Bridge, 61 MiB of JSON": http(EVALUATE, partial(umbridge, 61)),
    "UM-Bridge, 250 KiB of JSON, 32 at once": at_once(
        http(
            EVALUATE,
            lambda: (
                b'{"name":"echo","input":[%b]}'
                % numbers(1)[:250_000].rpartition(b",")[0].join([b"", b"]"])
            ),
        ),
        32,
    ),
    "UM-Bridge, 20 MiB with a NaN": http(EVALUATE, partial(literal, 20)),
    "KServe, 61 MiB of JSON": http(INFER, partial(kserve, 61)),
    "farm, 61 MiB of JSON, points": http(FARM, partial(points, 61)),
    "farm, 61 MiB of JSON, one point": http(FARM, partial(few_points, 61)),
    "nested JSON, 20 MiB": http(EVALUATE, partial(nested, 20)),
    "numbers as text": http(INFER, texts),
    "deflate bomb": http(EVALUATE, bomb, "content-encoding: deflate\r\n"),
    "AEPsych, 60 MiB": aepsych,
    "AEPsych, 4 million trials": aepsych_tells,
    "MIP, 720 KB of entries": mip,
    "gRPC, 48 MiB of typed numbers": grpc_typed,
    "64 MiB answered as JSON": binary_to_json,
    "eight clients, 61 MiB each": at_once(http(EVALUATE, partial(umbridge, 61)), 8),
}
