"""KServe's inference and its gRPC methods without a server, with models in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from farm.bodies.readers import READS_HERE, Reads
from farm.dispatcher.dispatcher import Dispatcher
from farm.grpc.call import Caller, Noted
from farm.model import Model
from farm.protocols.kserve.endpoint_inference import Inference
from farm.protocols.kserve.grpc.codec import decode
from farm.protocols.kserve.grpc.endpoint import SERVICE, KServeGrpc
from farm.protocols.kserve.repository import Repository
from farm.transports.threads import LocalTransport
from tests.support.coroutines import LIMIT_S


@asynccontextmanager
async def inference(
    models: Mapping[str, Model], *, workers: int = 1, readers: Reads = READS_HERE
) -> AsyncIterator[Inference]:
    """Run the models for the duration of the block."""
    dispatcher = Dispatcher([LocalTransport(models, workers=workers)])
    dispatcher.start()
    try:
        await dispatcher.wait_for_workers(workers, timeout_s=LIMIT_S)
        yield Inference(dispatcher, Repository(dispatcher), readers)
    finally:
        await dispatcher.close(grace_s=0.0)


async def infer(service: KServeGrpc, body: bytes, caller: Caller) -> Any:
    """Return the message that answers an inference."""
    answer = await service.unary[f"/{SERVICE}/ModelInfer"](body, caller)
    assert not isinstance(answer, Noted)
    return decode("inference.ModelInferResponse", bytes(answer))
