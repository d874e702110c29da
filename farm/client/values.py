"""Converts users' points to Calls, and Results to users' outputs.

A point holds the inputs of one evaluation: a dict by name; for a model with several inputs also a
sequence in order; for a model with one input also the array itself, or a list with the array as in
UM-Bridge. An output is the array of a model's only output, or a dict by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from farm.call import Array, Call, ModelInfo, Operation, Result, TensorInfo, numpy_dtype
from farm.dtypes import bytes_array, casts, unfit
from farm.errors import FarmError, InvalidInput, InvalidOutput, UnsupportedFeature
from farm.model import varying_shape

Point = Any
Output = Any


class Values:
    """Converts between users' values and the calls and results of one model with one config."""

    def __init__(self, info: ModelInfo, config: str) -> None:
        self.info = info
        self.config = config
        self._inputs = [(tensor, numpy_dtype(tensor.dtype)) for tensor in info.inputs]
        self._outputs = [(tensor, numpy_dtype(tensor.dtype)) for tensor in info.outputs]
        sized = [(t.size, dtype) for t, dtype in self._inputs + self._outputs if not t.varies]
        self.nbytes = sum(size * dtype.itemsize for size, dtype in sized)
        """Bytes of the inputs and outputs of one evaluation, without those of varying size."""

    def call(self, point: Point) -> Call:
        """Return the call that evaluates a point; its arrays are copies.

        Raises InvalidInput, UnsupportedFeature.
        """
        if Operation.EVALUATE not in self.info.operations:
            raise self._without_evaluate()
        return Call(self.info.name, Operation.EVALUATE, self.arrays(point), self.config)

    def calls(self, points: Iterable[Point]) -> Iterator[Call | FarmError]:
        """Yield the calls that evaluate the points, with an error in place of a wrong point."""
        for point in each_of(points):
            try:
                yield self.call(point)
            except FarmError as error:
                yield error

    def table(self, points: Array) -> Iterator[Call]:
        """Return the calls that evaluate the rows of an array, for one input and one output.

        points: of shape (N, *shape of the input), or (N, its size). Raises InvalidInput,
        UnsupportedFeature.
        """
        if Operation.EVALUATE not in self.info.operations:
            raise self._without_evaluate()
        rows = self.rows(points)
        self.check_one_array(self.info.outputs)
        name, config = self.info.name, self.config
        return (Call(name, Operation.EVALUATE, (row,), config) for row in rows)

    def rows(self, points: Array) -> Array:
        """Return an array of points in the shape of the model's only input. Raises InvalidInput."""
        self.check_one_array(self.info.inputs)
        tensor, dtype = self._inputs[0]
        rows = numbers(points, dtype, "the array of points")
        if rows.shape[1:] not in (tensor.shape, (tensor.size,)):
            raise InvalidInput(
                f"the array of points has shape {rows.shape}; for input {tensor.name!r} of model "
                f"{self.info.name!r} expected (N, {', '.join(map(str, tensor.shape))})"
            )
        return rows.reshape(len(rows), *tensor.shape)

    def check_one_array(self, tensors: Sequence[TensorInfo]) -> None:
        """Raise InvalidInput unless one array can hold these inputs or outputs of all points."""
        info = self.info
        about = (
            f"{info.name!r} has inputs {shown(info.inputs)} and outputs {shown(info.outputs)}: "
            "pass a list of points"
        )
        if len(tensors) != 1:
            raise InvalidInput(
                f"an array of points needs a model with one input and one output; {about}"
            )
        if tensors[0].varies:
            raise InvalidInput(f"an array of points needs a model with fixed sizes; {about}")

    def _without_evaluate(self) -> UnsupportedFeature:
        offered = ", ".join(sorted(self.info.operations)) or "nothing"
        return UnsupportedFeature(
            f"model {self.info.name!r} does not offer evaluate; it offers {offered}"
        )

    def arrays(self, point: Point) -> tuple[Array, ...]:
        """Return the inputs of a point, in the model's order, as copies. Raises InvalidInput."""
        tensors, kind = self._inputs, type(point)
        if len(tensors) == 1 and (kind is np.ndarray or (kind is list and len(point) > 1)):
            return (self._array(point, *tensors[0]),)  # the usual point
        values = [point] if len(tensors) == 1 else point
        if isinstance(point, Mapping):
            if point.keys() != {tensor.name for tensor, _ in tensors}:
                raise InvalidInput(
                    f"the point has {', '.join(map(repr, point)) or 'no inputs'}; "
                    f"model {self.info.name!r} has {shown(self.info.inputs)}"
                )
            values = [point[tensor.name] for tensor, _ in tensors]
        elif len(tensors) != 1:
            if not isinstance(point, list | tuple | np.ndarray) or len(point) != len(tensors):
                size = f" of {len(point)}" if isinstance(point, list | tuple | np.ndarray) else ""
                raise InvalidInput(
                    f"the point is a {type(point).__name__}{size}; model {self.info.name!r} has "
                    f"{len(tensors)} inputs, {shown(self.info.inputs)}: pass a dict or a list"
                )
        elif _is_list_of(point, tensors[0][0]):
            values = point
        return tuple([self._array(v, *t) for v, t in zip(values, tensors, strict=True)])

    def _array(self, value: Any, tensor: TensorInfo, dtype: np.dtype[Any]) -> Array:
        array = numbers(value, dtype, f"input {tensor.name!r}")
        if array.shape == tensor.shape:
            return array
        fitting: tuple[int, ...] | None = tensor.shape
        if tensor.varies:
            fitting = varying_shape(array.shape, tensor.shape)
        elif array.ndim > 1 or array.size != tensor.size:
            fitting = None
        if fitting is None:
            raise InvalidInput(
                f"input {tensor.name!r} has shape {array.shape}, "
                f"model {self.info.name!r} expects {tensor.shape}"
            )
        return array.reshape(fitting)

    def output(self, result: Result) -> Output:
        """Return the output of an evaluation as a copy. Raises InvalidOutput if it does not fit."""
        if len(result.outputs) != len(self._outputs):
            raise self._miscounted(result)
        arrays = list(map(self._given, result.outputs, self._outputs))
        if len(arrays) == 1:
            return arrays[0]
        return {t.name: array for t, array in zip(self.info.outputs, arrays, strict=True)}

    def put(self, result: Result, room: Array, index: int) -> None:
        """Write the output of an evaluation to row `index` of `room`. Raises InvalidOutput."""
        if len(result.outputs) != len(self._outputs):
            raise self._miscounted(result)
        array = result.outputs[0]
        has_shape = array.shape == self.info.outputs[0].shape
        room[index] = array if has_shape else self._given(array, self._outputs[0])

    def room(self, count: int) -> Array:
        """Return an empty array for the only output of `count` evaluations.

        Its shape is (count, *shape of the output).
        """
        tensor, dtype = self._outputs[0]
        return np.empty((count, *tensor.shape), dtype)

    def _miscounted(self, result: Result) -> InvalidOutput:
        return InvalidOutput(
            f"the answer has {len(result.outputs)} outputs, model {self.info.name!r} "
            f"declares {shown(self.info.outputs)}"
        )

    def _given(self, array: Array, declared: tuple[TensorInfo, np.dtype[Any]]) -> Array:
        """Return a copy: the array is a view of a message and would keep it in memory."""
        tensor, dtype = declared
        if array.shape == tensor.shape or tensor.varies:
            return np.array(array, dtype)
        if array.size != tensor.size:
            raise InvalidOutput(
                f"output {tensor.name!r} has shape {array.shape}, "
                f"model {self.info.name!r} declares {tensor.shape}"
            )
        return np.array(array, dtype).reshape(tensor.shape)


def numbers(value: Any, dtype: np.dtype[Any], what: str) -> Array:
    """Return a copy of `value` as an array of `dtype`. Raises InvalidInput if it does not fit."""
    try:
        if dtype.hasobject:
            return bytes_array(value)
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{what} is not an array of numbers: {error}") from None
    if array.dtype == dtype:
        return array if type(value) is list else np.array(array, order="C")
    if not casts(array.dtype, dtype):
        raise InvalidInput(f"{what} is {array.dtype}, expected numbers of type {dtype}")
    if entry := unfit(array, dtype):
        raise InvalidInput(f"{what} holds {entry}, which the type {dtype} cannot hold")
    return np.array(array, dtype, order="C")


def _is_list_of(point: Point, tensor: TensorInfo) -> bool:
    """Whether the point is a list that contains the only input, as in UM-Bridge."""
    depth = max(1, len(tensor.shape))
    return isinstance(point, list | tuple) and len(point) == 1 and np.ndim(point[0]) >= depth


def shown(tensors: Sequence[TensorInfo]) -> str:
    """Return the names and shapes of inputs or outputs, for messages."""
    return ", ".join(f"{t.name} {t.shape}" for t in tensors) or "none"


def each_of(points: Iterable[Point]) -> Iterable[Point]:
    """Return the points. Raises InvalidInput if they are not several, or are a DataFrame."""
    if hasattr(points, "columns") and hasattr(points, "to_numpy"):
        raise InvalidInput(
            "the points are a DataFrame, which iterates over its columns; expected the points: "
            "frame.to_dict('records') by name, or frame.to_numpy() for one input"
        )
    if not isinstance(points, Iterable):
        raise InvalidInput(
            f"the points are a {type(points).__name__}; expected a list or another iterable of "
            "points, or an array of shape (N, *input shape); call the model itself with one point"
        )
    return points
