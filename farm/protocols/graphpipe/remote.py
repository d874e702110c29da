"""The model of a running GraphPipe server: Oracle's in Go or Python, or another farm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from farm.call import Call, Operation, canonical_config
from farm.encoding.tensors import longest_answer
from farm.errors import ModelNotFound
from farm.http1.client import HttpClient
from farm.model import Config, Inputs, Model
from farm.protocols.graphpipe.client import (
    METADATA_REQUEST,
    decode_metadata,
    decode_result,
    encode_call,
)

OCTETS = {"Content-Type": "application/octet-stream"}

UNNAMED = "graphpipe"
"""The name of a model whose server does not report one."""


def models_at(url: str, name: str | None = None) -> dict[str, Model]:
    """Return the model of a running GraphPipe server: the one at the URL, or the one called `name`.

    url: `graphpipe+http://host:port/path`, with `user:password@` if needed. A `name` is looked up
    below /graphpipe, where a farm has its models; servers of one model answer at every path. Raises
    Unavailable if nothing answers there, ModelNotFound if it has another model, and other
    FarmErrors if it is another kind of server.
    """
    url = url.removeprefix("graphpipe+")
    if name is None:
        model = GraphpipeModel(url)
        return {model.name: model}
    model = GraphpipeModel(f"{url.rstrip('/')}/graphpipe/{quote(name, safe='')}")
    if model.name not in (name, UNNAMED):
        raise ModelNotFound(
            f"{url} has the model {model.name!r}, not {name!r}; "
            f"to give it another name say {name}=graphpipe+{url}"
        )
    return {name: model}


class GraphpipeModel(Model):
    """The model behind a GraphPipe server, at the URL of this model.

    inputs, outputs: names of the tensors to use, if not all: some servers list every node
        of a graph.
    max_batch: rows per request. The protocol does not report how many a server takes. Tensors
        whose shapes all begin with -1 have a batch axis there.

    It sends a call's config as JSON. Raises FarmErrors if the server does not answer, or does not
    answer in this protocol.
    """

    def __init__(
        self,
        url: str,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        max_batch: int = 1,
    ) -> None:
        self._server = HttpClient(url, keep=True)
        status, _, body = self._server.ask("", METADATA_REQUEST, headers=OCTETS)
        self._info, self._batched = decode_metadata(status, body, inputs=inputs, outputs=outputs)
        self.name = self._info.name or UNNAMED
        self.description = f"{self.name} at {self._server.url}"
        self.inputs = {tensor.name: tensor for tensor in self._info.inputs}
        self.outputs = {tensor.name: tensor for tensor in self._info.outputs}
        self.max_batch = max_batch if self._batched else 1

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the server's outputs; all rows go in one request."""
        arrays = list(inputs.values())
        alone = self._batched and self.max_batch == 1
        if alone:
            arrays = [x[None] for x in arrays]
        rows = len(arrays[0]) if self._batched else None
        text = canonical_config(config)
        call = Call(self.name, Operation.EVALUATE, tuple(arrays), text, rows=rows)
        body = encode_call(call, self._info)
        most = longest_answer(self._info, rows)
        answer = self._server.ask("", body, headers=OCTETS, once=not self.repeatable, most=most)
        outputs = decode_result(self._info, answer[0], answer[2]).outputs
        if alone:
            outputs = tuple(y.reshape(y.shape[1:]) for y in outputs)
        return dict(zip(self.outputs, outputs, strict=True))
