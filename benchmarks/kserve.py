"""Requests per second and latency of KServe v2 inference: farm beside MLServer and Triton.

One run, one load generator, alternating servers, 1, 16 and 64 callers; JSON, binary tensors and
gRPC; a trivial model, and one of 5 ms per execution that accepts batches of up to 64 rows. The
other servers run in their own environments, and are left out if these are not given:

    python3 -m venv /tmp/mlserver && /tmp/mlserver/bin/pip install mlserver==1.7.1 'uvloop<0.22'
    python3 -m venv /tmp/triton && /tmp/triton/bin/pip install nvidia-pytriton
    .venv/bin/python benchmarks/kserve.py --mlserver /tmp/mlserver --triton /tmp/triton
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import orjson
from tritonclient.grpc import service_pb2

from http_load import Load, run_load
from kserve_peers import Peer, farm_peer, mlserver_peer, pytriton_peer, triton_peer
from machine import versions
from round_trip import bare_broker, broker_load

CALLERS = (1, 16, 64)
MODELS = ("trivial", "slow")
X = np.array([[1.0, 2.0, 3.0, 4.0]])

TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP64"}
AS_JSON = orjson.dumps({"inputs": [{**TENSOR, "data": [1.0, 2.0, 3.0, 4.0]}]})
HEADER = orjson.dumps(
    {
        "inputs": [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
)
AS_BINARY = HEADER + X.tobytes()


def json_load(peer: Peer, model: str, callers: int, seconds: float) -> Load:
    """Run inference with numbers in JSON."""
    path = f"/v2/models/{model}/infer"
    # Some servers write 8.0, some 8.
    return run_load(
        peer.http, path, AS_JSON, callers=callers, seconds=seconds, fresh=False, expected=b"8"
    )


def binary_load(peer: Peer, model: str, callers: int, seconds: float) -> Load:
    """Run inference with the binary tensor extension in both directions, as tritonclient does."""
    return run_load(
        peer.http,
        f"/v2/models/{model}/infer",
        AS_BINARY,
        callers=callers,
        seconds=seconds,
        fresh=False,
        expected=(2.0 * X).tobytes(),
        headers=f"Inference-Header-Content-Length: {len(HEADER)}",
    )


def grpc_load(peer: Peer, model: str, callers: int, seconds: float) -> Load:
    """Run inference over gRPC with raw contents; the messages are encoded once."""
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = "x", "FP64"
    tensor.shape.extend([1, 4])
    request.raw_input_contents.append(X.tobytes())
    body, expected = request.SerializeToString(), (2.0 * X).tobytes()

    async def run() -> Load:
        load = Load()
        async with grpc.aio.insecure_channel(peer.grpc) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            start = time.perf_counter()

            async def caller() -> None:
                while (sent_at := time.perf_counter()) - start < seconds:
                    if expected not in await infer(body):
                        raise RuntimeError(f"a wrong answer of {peer.name}")
                    load.latencies_s.append(time.perf_counter() - sent_at)

            await asyncio.gather(*[caller() for _ in range(callers)])
            load.seconds = time.perf_counter() - start
        return load

    return asyncio.run(run())


FORMS: dict[str, Callable[[Peer, str, int, float], Load]] = {
    "JSON": json_load,
    "binary": binary_load,
    "gRPC": grpc_load,
}

Loads = dict[tuple[str, str, str, int], Load]
"""Loads by model, form, peer and number of callers."""


def measure(peers: list[Peer], options: argparse.Namespace) -> Loads:
    """Run all loads on all peers in turn: the speed of a virtual machine changes by the minute."""
    loads: Loads = {}
    seconds = options.seconds / options.rounds
    for _ in range(options.rounds):
        for model, form, callers in itertools.product(options.models, options.forms, CALLERS):
            for peer in peers:
                # MLServer refuses binary tensors.
                if form == "binary" and peer.name == "MLServer":
                    continue
                run = FORMS[form]
                run(peer, model, callers, 0.1 * seconds)
                load = loads.setdefault((model, form, peer.name, callers), Load())
                load.add(run(peer, model, callers, seconds))
    return loads


def show(loads: Loads, peers: list[Peer], options: argparse.Namespace) -> None:
    """Print tables of rates and median latencies, and of ratios."""
    for model, form in itertools.product(options.models, options.forms):
        title = f"{model}, {form}: requests/s (median ms)"
        print(f"\n{title:44}" + "".join(f"{c:>8} callers" for c in CALLERS))
        rows = {p.name: [loads.get((model, form, p.name, c)) for c in CALLERS] for p in peers}
        for name, row in rows.items():
            cells = [
                f"{load.per_s:8.0f} ({load.p50_s * 1e3:5.2f})" if load else f"{'-':>16}"
                for load in row
            ]
            print(f"  {name:42}" + "".join(cells))
        for name, row in rows.items():
            if name == "farm":
                continue
            pairs = zip(rows["farm"], row, strict=True)
            cells = [f"{a.per_s / b.per_s:16.2f}" if a and b else f"{'-':>16}" for a, b in pairs]
            print(f"  farm / {name:35}" + "".join(cells))
        for name, row in rows.items():
            alone, theirs = rows["farm"][0], row[0]
            if name != "farm" and alone and theirs:
                print(f"  median latency, farm / {name:19}{alone.p50_s / theirs.p50_s:16.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mlserver", type=Path, help="virtual environment with mlserver")
    parser.add_argument("--triton", type=Path, help="virtual environment with nvidia-pytriton")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--rounds", type=int, default=3, help="turns into which it is divided")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    options = parser.parse_args()
    print(versions("numpy", "pyzmq", "uvloop", "grpcio", "tritonclient"))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        peers = [stack.enter_context(farm_peer(folder / "farm"))]
        if options.mlserver:
            python = options.mlserver / "bin" / "python"
            peers.append(stack.enter_context(mlserver_peer(folder / "mlserver", python)))
        if options.triton:
            python = options.triton / "bin" / "python"
            for peer, name in ((pytriton_peer, "pytriton"), (triton_peer, "triton")):
                try:
                    peers.append(stack.enter_context(peer(folder / name, python)))
                except RuntimeError as error:  # pytriton needs a newer Python than Triton's backend
                    print(f"left out: {str(error).splitlines()[0][:100]}", flush=True)
        loads = measure(peers, options)
    show(loads, peers, options)
    with bare_broker() as endpoint:
        bare = broker_load(endpoint, 1, options.seconds).p50_s
    print(f"\na lone call through a bare pyzmq broker: {bare * 1e3:.2f} ms")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
