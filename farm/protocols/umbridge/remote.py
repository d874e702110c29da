"""Models that speak UM-Bridge already: Python objects, and models of a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from farm.call import (
    TAKE_SENS,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    TensorInfo,
    canonical_config,
)
from farm.declared import Tensors
from farm.encoding.tensors import LONGEST_ANSWER, longest_answer
from farm.errors import InvalidOutput, ModelNotFound
from farm.functions import ForwardingModel
from farm.http1.client import HttpClient
from farm.model import Config, Inputs, Model
from farm.protocols.umbridge.client import (
    decode_info,
    decode_model_info,
    decode_response,
    decode_sizes,
    encode_question,
    encode_request,
)
from farm.protocols.umbridge.codec import FEATURES, Endpoint, Question

CONFIGS_KEPT = 1000
"""Most configs whose sizes a model keeps."""


def adapt_object(obj: Any) -> Model:
    """Return a model for an `umbridge.Model` object.

    Its inputs are called in0, in1, ... and its outputs out0, out1, ... Raises TypeError if the
    object is of another kind.
    """
    for method in ("get_input_sizes", "get_output_sizes", "supports_evaluate", "__call__"):
        if not callable(getattr(obj, method, None)):
            raise TypeError(
                f"{type(obj).__name__} has no method {method}; expected an umbridge.Model object"
            )
    return ObjectModel(obj)


BOOLEANS = frozenset({bool, np.bool_})


class ObjectModel(ForwardingModel):
    """A model around an `umbridge.Model` object, which takes and returns plain lists.

    The package itself is not needed: objects are recognised by their methods.
    """

    def __init__(self, obj: Any) -> None:
        self._object = obj
        self.name = str(getattr(obj, "name", "") or type(obj).__name__)
        self.operations = frozenset(
            operation
            for operation in FEATURES
            if getattr(obj, f"supports_{operation}", bool)()  # bool() is False
        )

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the object's sizes for this config."""
        inputs = self._object.get_input_sizes(config)
        return _tensors(inputs, self._object.get_output_sizes(config))

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the object's outputs, which are lists as the official server demands."""
        value = self._object(_lists(inputs), config)
        if not isinstance(value, list) or not all(isinstance(each, list) for each in value):
            raise self._not_lists("a list of lists, one for each output", value)
        return tuple(map(self._vector, value)) if len(value) != 1 else [self._vector(value[0])]

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return a derivative, computed by the object."""
        return self._vector(getattr(self._object, method)(*map(_plain, arguments)))

    def _vector(self, value: Any) -> list[Any]:
        """Return a vector. Raises InvalidOutput unless it is a list without Booleans."""
        if not isinstance(value, list):
            raise self._not_lists("a list", value)
        if not BOOLEANS.isdisjoint(map(type, value)):
            raise self._not_lists("numbers", value)
        return value

    def _not_lists(self, expected: str, value: Any) -> InvalidOutput:
        text = " ".join(repr(value)[:80].split())
        return InvalidOutput(f"model {self.name!r} returned {text}; expected {expected}")


def _plain(argument: Any) -> Any:
    if isinstance(argument, Inputs):
        return _lists(argument)
    return argument.tolist() if isinstance(argument, np.ndarray) else argument


def _lists(inputs: Inputs) -> list[list[float]]:
    return [x.tolist() for x in inputs.values()]


def _tensors(inputs: Sequence[int], outputs: Sequence[int]) -> tuple[Tensors, Tensors]:
    return (
        {f"in{i}": int(n) for i, n in enumerate(inputs)},
        {f"out{i}": int(n) for i, n in enumerate(outputs)},
    )


def models_at(url: str, name: str | None = None) -> dict[str, Model]:
    """Return the models of a running UM-Bridge server, or the one called `name`.

    url: `http://host:port`, with `user:password@` and a path prefix if needed. Raises Unavailable
    if nothing answers there, InvalidRequest if it is another kind of server, ModelNotFound if it
    has no such model.
    """
    # On a reused connection, the official C++ server answers 40 ms late; it closes a connection
    # after five calls, and an idle one blocks all other clients.
    server = HttpClient(url, keep=False)
    names = decode_info(*server.ask(*encode_question(Question(Endpoint.INFO))))
    if name is not None:
        if name not in names:
            offered = ", ".join(map(repr, names)) or "none"
            raise ModelNotFound(f"{server.url} has no model {name!r}; its models are: {offered}")
        names = (name,)
    return {name: ServerModel(server, name) for name in names}


class ServerModel(ForwardingModel):
    """One model of a UM-Bridge server, which may be another farm.

    A Python server of version 1.2.9 or older checks the length of a Hessian's answer against the
    wrong size and answers InvalidOutput if `outputSizes[outWrt]` and `inputSizes[inWrt1]` differ;
    the client cannot prevent that.
    """

    def __init__(self, server: HttpClient, name: str) -> None:
        self._server = server
        self.name = name
        self.description = f"{name} at {server.url}"
        question = Question(Endpoint.MODEL_INFO, name)
        self.operations = decode_model_info(*server.ask(*encode_question(question)))
        self._most: dict[str, int] = {}  # bytes of an answer, by config

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the server's sizes for this config."""
        text = canonical_config(config)
        inputs = self._sizes(Question(Endpoint.INPUT_SIZES, self.name, text))
        outputs = self._sizes(Question(Endpoint.OUTPUT_SIZES, self.name, text))
        if len(self._most) >= CONFIGS_KEPT:
            self._most.clear()
        sizes = [TensorInfo("", (n,)) for n in (*inputs, *outputs)]
        self._most[text] = longest_answer(ModelInfo(self.name, tuple(sizes), ()))
        return _tensors(inputs, outputs)

    def _sizes(self, question: Question) -> tuple[int, ...]:
        return decode_sizes(question, *self._server.ask(*encode_question(question)))

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the server's outputs."""
        return self._outputs(Operation.EVALUATE, inputs, config, None)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return a derivative, computed by the server."""
        operation = Operation(method)
        at = next(i for i, given in enumerate(arguments) if isinstance(given, Inputs))
        inputs, *vectors, config = arguments[at:]
        sens = vectors.pop(0) if operation in TAKE_SENS else None
        vec = vectors.pop() if vectors else None
        wrt = replace(Derivative(*arguments[:at]), sens=sens, vec=vec)
        return self._outputs(operation, inputs, config, wrt)[0]

    def _outputs(
        self,
        operation: Operation,
        inputs: Mapping[str, Array],
        config: Config,
        derivative: Derivative | None,
    ) -> list[Array]:
        vectors = tuple(np.asarray(x, np.float64) for x in inputs.values())
        call = Call(self.name, operation, vectors, canonical_config(config), derivative)
        answer = self._server.ask(
            *encode_request(call), most=self._most.get(call.config, LONGEST_ANSWER)
        )
        return list(decode_response(call, *answer).outputs)
