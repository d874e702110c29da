"""farm's own request for many evaluations: a JSON body in, one JSON line per point out.

    {"inputs": [[[1.0, 2.0], [3.0]], ...]}                 each point: its inputs in order
    {"inputs": [{"x": [1.0, 2.0], "scale": [3.0]}, ...]}   or by name

    {"index": 0, "status": "done", "outputs": [[...]], "run_time_s": 0.1, ...}
    {"index": 7, "status": "failed", "error": {"type": "ModelFailed", "message": "..."}}

For the operation stream, each answer is a line with the status "answer", and a line with "done" and
no outputs, or with "failed", follows the last one. Lines are sent in the order in which points
finish. An invalid point fails alone. Inputs may be flat or nested like the tensor's shape; outputs
are nested, in order or by name as the inputs were. A derivative is one flat list in the outputs; a
value_and_gradient has the outputs of an evaluation, and the flat list as "gradient".
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson

from farm.call import (
    BYTES,
    DERIVATIVES,
    QUESTIONS,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
)
from farm.dtypes import bytes_array
from farm.encoding.config import decode_config, decode_derivative
from farm.encoding.errors import ERRORS, valid_text
from farm.encoding.json_numbers import NonFinite, array_text, as_declared, kind_of, parse, tensor
from farm.errors import FarmError, InvalidInput, InvalidOutput

KEYS = MappingProxyType(
    {
        "inputs": "the points: each a list of inputs in order, or an object with inputs by name",
        "config": "the model's config, the same for all points; {} when left out",
        "operation": "evaluate, gradient, apply_jacobian, apply_hessian, value_and_gradient or "
        "stream; default evaluate",
        "outWrt": "derivatives: the output, counted from 0",
        "inWrt": "gradient, apply_jacobian and value_and_gradient: the input, counted from 0",
        "inWrt1": "apply_hessian: the first input",
        "inWrt2": "apply_hessian: the second input",
        "sens": "gradient, apply_hessian and value_and_gradient: one list of numbers for all "
        "points, or a list of one list each",
        "vec": "apply_jacobian and apply_hessian: as sens",
        "non_finite": "how NaN and infinities are written: literal, null or error",
    }
)
"""Every key of the request, with its meaning."""


class LineForm(NamedTuple):
    """Parameters of the answer's lines; by_name: whether the points name their inputs."""

    operation: Operation
    by_name: bool
    non_finite: NonFinite


TRAVELS = (LineForm,)
"""Classes that may cross to and from a reader process, in addition to farm's own."""


@dataclass(frozen=True, slots=True)
class Points:
    """A decoded request: `len` points of one model, operation and config."""

    operation: Operation
    config: str
    inputs: list[Any]
    by_name: bool
    non_finite: NonFinite
    message: dict[str, Any]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def form(self) -> LineForm:
        """The form of the answer's lines."""
        return LineForm(self.operation, self.by_name, self.non_finite)

    def call(self, index: int, info: ModelInfo) -> Call:
        """Return the call of one point. info: the model's description for the config.

        Raises InvalidInput if the point's form is wrong; `check_call` checks its sizes.
        """
        where = f"inputs[{index}]"
        arrays = self._arrays(self.inputs[index], info, where)
        derivative = None
        if self.operation in DERIVATIVES:
            derivative = self._derivative(index)
        return Call(info.name, self.operation, arrays, self.config, derivative)

    def _arrays(self, point: Any, info: ModelInfo, where: str) -> tuple[Array, ...]:
        names = [t.name for t in info.inputs]
        if type(point) is dict:
            if set(point) != set(names):
                raise InvalidInput(
                    f"{where} has the inputs {_list(point)}; expected {_list(names)}"
                )
            point = [point[name] for name in names]
        elif type(point) is not list:
            raise InvalidInput(f"{where} is {kind_of(point)}; expected a list or an object")
        elif len(point) != len(names):
            raise InvalidInput(
                f"{where} has {len(point)} inputs; model {info.name!r} expects {len(names)}"
            )
        return tuple(
            [
                _array(value, declared, f"{where}[{i}]")
                for i, (value, declared) in enumerate(zip(point, info.inputs, strict=True))
            ]
        )

    def _derivative(self, index: int) -> Derivative:
        message = dict(self.message)
        for key in ("sens", "vec"):
            value = message.get(key)
            if type(value) is list and value and type(value[0]) is list:
                if len(value) != len(self):
                    raise InvalidInput(
                        f"{key} has {len(value)} vectors for {len(self)} points; "
                        "expected one for each, or one list of numbers for all"
                    )
                message[key] = value[index]
        return decode_derivative(message, self.operation)


def _array(value: Any, declared: TensorInfo, where: str) -> Array:
    if declared.dtype != BYTES:
        return as_declared(tensor(value, where), declared)
    try:
        return bytes_array(value)
    except TypeError:
        raise InvalidInput(f"{where} is {kind_of(value)}; expected texts") from None


def decode_points(body: bytes, non_finite: NonFinite = NonFinite.LITERAL) -> Points:
    """Decode a request. Raises InvalidRequest or InvalidInput if it is malformed."""
    message = parse(body)
    if type(message) is not dict:
        raise InvalidInput(f"the body is {kind_of(message)}; expected a JSON object with inputs")
    unknown = sorted(set(message) - set(KEYS))
    if unknown:
        raise InvalidInput(
            f"{_list(unknown)} is not a key of this request; the keys are {_list(KEYS)}"
        )
    inputs = message.get("inputs")
    if type(inputs) is not list:
        what = kind_of(inputs) if "inputs" in message else "missing"
        raise InvalidInput(f"inputs is {what}; expected a list of points")
    operations = [op.value for op in Operation if op not in QUESTIONS]
    operation = message.get("operation", Operation.EVALUATE.value)
    if operation not in operations:
        raise InvalidInput(f"operation is {_shown(operation)}; expected {', '.join(operations)}")
    choice = message.get("non_finite", non_finite.value)
    if choice not in list(NonFinite):
        raise InvalidInput(f"non_finite is {_shown(choice)}; expected {', '.join(NonFinite)}")
    return Points(
        operation=Operation(operation),
        config=decode_config(message, body),
        inputs=inputs,
        by_name=bool(inputs) and type(inputs[0]) is dict,
        non_finite=NonFinite(choice),
        message=message,
    )


def _shown(value: Any) -> str:
    return repr(value[:40]) if isinstance(value, str) else kind_of(value)


def _list(names: Any) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


def encode_result_line(form: LineForm, index: int, info: ModelInfo, result: Result) -> bytes:
    """Return the line of a point that has finished, or of one answer of its stream.

    Raises InvalidOutput for a non-finite number where that is an error, and for text that is not
    UTF-8.
    """
    outputs: dict[str, orjson.Fragment] | list[orjson.Fragment]
    both = form.operation is Operation.VALUE_AND_GRADIENT
    if form.operation in DERIVATIVES and not both:
        outputs = [_fragment(result.outputs[0], form, "output")]
    else:
        values = result.outputs[:-1] if both else result.outputs
        named = {
            t.name: _fragment(y, form, f"output {t.name!r}")
            for t, y in zip(info.outputs, values, strict=bool(values))
        }
        outputs = named if form.by_name else list(named.values())
    line: dict[str, Any] = {
        "index": index,
        "status": "answer" if result.more else "done",
        "outputs": outputs,
        "run_time_s": result.run_time_s,
        "queue_time_s": result.queue_time_s,
        "worker": result.worker,
    }
    if both:
        line["gradient"] = _fragment(result.outputs[-1], form, "gradient")
    if result.copied:
        line["copied"] = True
    if result.reused:
        line["reused"] = True
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _fragment(values: Array, form: LineForm, where: str) -> orjson.Fragment:
    if not values.dtype.hasobject:
        return orjson.Fragment(array_text(values, form.non_finite, where=where))
    try:
        texts = np.array([item.decode() for item in values.reshape(-1)], object)
    except UnicodeDecodeError as error:
        raise InvalidOutput(f"{where} is not UTF-8 text, which JSON needs: {error}") from None
    return orjson.Fragment(orjson.dumps(texts.reshape(values.shape).tolist()))


def encode_error_line(index: int, error: FarmError) -> bytes:
    """Return the line of a point that has failed."""
    told = {"type": ERRORS[type(error)][0], "message": valid_text(error.message)}
    line = {"index": index, "status": "failed", "error": told}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
