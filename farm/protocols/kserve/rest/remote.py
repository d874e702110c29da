"""Models of a running KServe v2 server: Triton, MLServer, KServe, another farm."""

from __future__ import annotations

from typing import Any

from farm.call import Call, Operation
from farm.encoding.tensors import longest_answer
from farm.errors import InvalidInput, ModelNotFound
from farm.http1.client import HttpClient
from farm.model import Config, Inputs, Model
from farm.protocols.kserve.rest.client import (
    decode_max_batch,
    decode_metadata,
    decode_models,
    decode_result,
    encode_call,
    model_path,
)

INDEX = "/v2/repository/index"


def models_at(url: str, name: str | None = None) -> dict[str, Model]:
    """Return the ready models of a running KServe v2 server, or the one called `name`.

    url: `kserve+http://host:port`, with `user:password@` and a path prefix if needed. Raises
    Unavailable if nothing answers there, ModelNotFound if it has no such model, and other
    FarmErrors if it is another kind of server.
    """
    url = url.removeprefix("kserve+")
    server = HttpClient(url, keep=True)
    if name is not None:
        return {name: KserveModel(server, name)}
    status, _, body = server.ask(INDEX, b"{}")
    if status in (404, 405, 501):
        raise ModelNotFound(
            f"{server.url} does not list its models; say which one: MODEL@kserve+{server.url}"
        )
    return {name: KserveModel(server, name) for name in decode_models(status, body)}


class KserveModel(Model):
    """One model of a KServe v2 server.

    server: the server, or its URL.
    max_batch: rows per request; None: from the server's configuration, or 1 if it has none, as
        with MLServer. Tensors whose shapes all begin with -1 have a batch axis there.

    A call with a config is refused, because the protocol has no config. Raises FarmErrors if the
    server does not answer, or does not answer in this protocol.
    """

    def __init__(
        self, server: HttpClient | str, name: str, *, max_batch: int | None = None
    ) -> None:
        self._server = HttpClient(server, keep=True) if isinstance(server, str) else server
        self.name = name
        self.description = f"{name} at {self._server.url}"
        status, _, body = self._server.ask(model_path(name))
        plain = decode_metadata(status, body, max_batch=0)
        if max_batch is None:
            said, _, config = self._server.ask(model_path(name, "config"))
            max_batch = decode_max_batch(said, config)
        self._info = decode_metadata(status, body, max_batch=max_batch)
        self._batched = self._info.inputs != plain.inputs
        self.inputs = {tensor.name: tensor for tensor in self._info.inputs}
        self.outputs = {tensor.name: tensor for tensor in self._info.outputs}
        self.max_batch = self._info.max_batch

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the server's outputs; all rows go in one request."""
        if config:
            raise InvalidInput(f"model {self.description} takes no config, got {config}")
        arrays = list(inputs.values())
        alone = self._batched and self.max_batch == 1
        if alone:
            arrays = [x[None] for x in arrays]
        rows = len(arrays[0]) if self._batched else None
        call = Call(self.name, Operation.EVALUATE, tuple(arrays), rows=rows)
        body, headers = encode_call(call, self._info)
        path = model_path(self.name, "infer")
        most = longest_answer(self._info, rows)
        once = not self.repeatable
        answer = self._server.ask(path, body, headers=headers, once=once, most=most)
        outputs = decode_result(self._info, *answer).outputs
        if alone:
            outputs = tuple(y.reshape(y.shape[1:]) for y in outputs)
        return dict(zip(self.outputs, outputs, strict=True))
