"""Converts users' points and vectors to derivative Calls, and Results to users' derivatives.

A derivative is an array in the shape of the input or output that it is like; value_and_gradient
gives a pair, the model's output and the gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from farm.call import TAKE_SENS, TAKE_VEC, Array, Call, Derivative, Operation, Result, TensorInfo
from farm.client.values import Point, Values, each_of, numbers, shown
from farm.errors import FarmError, InvalidInput, InvalidOutput, UnsupportedFeature
from farm.model import check_call

_FLOAT64 = np.dtype(np.float64)


class Derivatives:
    """Converts between users' values and the calls and results of one derivative of a model.

    out, wrt, wrt2: the output and the inputs, by name or position from 0. sens, vec: see `Vectors`.
    Raises InvalidInput or UnsupportedFeature.
    """

    def __init__(
        self,
        values: Values,
        operation: Operation,
        *,
        out: int | str = 0,
        wrt: int | str = 0,
        wrt2: int | str | None = None,
        sens: Any = None,
        vec: Any = None,
    ) -> None:
        info = values.info
        if not info.offers(operation):
            offered = ", ".join(sorted(info.operations)) or "nothing"
            raise UnsupportedFeature(
                f"model {info.name!r} does not offer {operation}; it offers {offered}"
            )
        self._values = values
        self._operation = operation
        self._out = _position(out, info.outputs, "output")
        self._wrt = _position(wrt, info.inputs, "input")
        self._wrt2 = self._wrt
        if wrt2 is not None:
            self._wrt2 = _position(wrt2, info.inputs, "input")
        by_output = operation is Operation.APPLY_JACOBIAN
        self._like = info.outputs[self._out] if by_output else info.inputs[self._wrt]
        self._sens = self._vec = _NONE
        if operation in TAKE_SENS:
            self._sens = Vectors("sens", sens, info.outputs[self._out])
        elif sens is not None:
            raise InvalidInput(f"{operation} takes no sens, only vec")
        if operation in TAKE_VEC:
            along = self._wrt2 if operation is Operation.APPLY_HESSIAN else self._wrt
            self._vec = Vectors("vec", vec, info.inputs[along])
        elif vec is not None:
            raise InvalidInput(f"{operation} takes no vec, only sens")
        self.nbytes = values.nbytes * 2
        """Bytes of one call and its result; those of varying size do not count."""

    def call(self, point: Point) -> Call:
        """Return the call for one point; its arrays are copies. Raises InvalidInput."""
        return self._call(self._values.arrays(point), self._sens.only(), self._vec.only())

    def calls(self, points: Iterable[Point]) -> Iterator[Call | FarmError]:
        """Yield the calls for many points, with an error in place of a wrong point or vector.

        Raises InvalidInput at once if the points are counted and the vectors are not as many.
        """
        return self._calls(points, self._values.arrays)

    def _calls(
        self, points: Iterable[Point], arrays: Callable[[Point], tuple[Array, ...]]
    ) -> Iterator[Call | FarmError]:
        for vectors in (self._sens, self._vec):
            vectors.check_count(points)

        def calls() -> Iterator[Call | FarmError]:
            sens_of_each, vec_of_each = iter(self._sens), iter(self._vec)
            for point in each_of(points):
                sens, vec = next(sens_of_each), next(vec_of_each)
                try:
                    yield self._call(arrays(point), _checked(sens), _checked(vec))
                except FarmError as error:
                    yield error

        return calls()

    def _call(self, inputs: tuple[Array, ...], sens: Array | None, vec: Array | None) -> Call:
        # `in_wrt2` of other operations stays 0, as the protocols have it.
        wrt2 = self._wrt2 if self._operation is Operation.APPLY_HESSIAN else 0
        wrt = Derivative(self._out, self._wrt, wrt2, sens, vec)
        values = self._values
        call = Call(values.info.name, self._operation, inputs, values.config, wrt)
        check_call(call, values.info)
        return call

    def table(self, points: Array) -> Iterator[Call | FarmError]:
        """Return the calls for the rows of an array, for a model with one input.

        points: of shape (N, *shape of the input), or (N, its size). Raises InvalidInput.
        """
        values = self._values
        rows = values.rows(points)
        if self._operation is Operation.VALUE_AND_GRADIENT:
            values.check_one_array(values.info.outputs)
        elif self._like.varies:
            values.check_one_array((self._like,))
        return self._calls(rows, lambda row: (row,))

    def output(self, result: Result) -> Any:
        """Return the derivative, or the pair of output and gradient. Raises InvalidOutput."""
        derivative = np.array(self._derivative(result), _FLOAT64)
        if self._operation is not Operation.VALUE_AND_GRADIENT:
            return derivative
        return self._values.output(Result(result.outputs[:-1])), derivative

    def _derivative(self, result: Result) -> Array:
        outputs, like = result.outputs, self._like
        if self._operation is Operation.VALUE_AND_GRADIENT:
            outputs = outputs[-1:]
        if len(outputs) != 1 or outputs[0].size != like.size:
            sizes = [array.size for array in outputs]
            raise InvalidOutput(
                f"{self._operation} of model {self._values.info.name!r} gave vectors of lengths "
                f"{sizes}, expected one of {like.size}"
            )
        return outputs[0].reshape(like.shape)

    def room(self, count: int) -> Any:
        """Return an empty array for `count` derivatives, or a pair of arrays."""
        derivatives = np.empty((count, *self._like.shape))
        if self._operation is not Operation.VALUE_AND_GRADIENT:
            return derivatives
        return self._values.room(count), derivatives

    def put(self, result: Result, room: Any, index: int) -> None:
        """Write a result to row `index` of what `room` returned. Raises InvalidOutput."""
        derivative = self._derivative(result)
        if self._operation is Operation.VALUE_AND_GRADIENT:
            values, room = room
            self._values.put(Result(result.outputs[:-1]), values, index)
        room[index] = derivative


class Vectors:
    """The vectors `sens` or `vec` of many points: one for all of them, or one for each.

    value: as many numbers as the tensor has, for all points; with one more leading axis, or any
    other iterable, for each point. None, if the tensor has one entry: 1.0 for all points.
    """

    def __init__(self, key: str, value: Any, tensor: TensorInfo) -> None:
        self._key = key
        self._tensor = tensor
        self._shared: Array | None = None
        self._each: Iterable[Any] = ()
        if value is None:
            if tensor.size != 1:
                raise InvalidInput(f"{key} is missing; expected {self._expected()}")
            self._shared = np.ones(1)
        elif not _is_array(value):
            self._each = value
        else:
            array = numbers(value, _FLOAT64, key)
            if array.size == tensor.size:
                self._shared = array.reshape(-1)
            elif array.shape == (0,) or array.shape[1:] in (tensor.shape, (tensor.size,)):
                self._each = array
            else:
                raise InvalidInput(f"{key} has shape {array.shape}; expected {self._expected()}")

    def _expected(self) -> str:
        shape = self._tensor.shape
        per_point = ", ".join(["N", *map(str, shape)]) + ("" if shape else ",")
        return f"{shape}, the shape of {self._tensor.name!r}, or ({per_point}) for N points"

    def only(self) -> Array:
        """Return the vector of a single point. Raises InvalidInput if there is one per point."""
        if self._shared is None:
            raise InvalidInput(
                f"{self._key} has a vector for each of many points; "
                f"expected one of shape {self._tensor.shape} for one point"
            )
        return self._shared

    def check_count(self, points: Iterable[Any]) -> None:
        """Raise InvalidInput if there is a vector per point and another number of points."""
        if self._shared is None and isinstance(points, Sized) and isinstance(self._each, Sized):
            expected, actual = len(points), len(self._each)
            if expected != actual:
                raise InvalidInput(
                    f"{self._key} has {actual} vectors for {expected} points; "
                    "expected one for each, or one for all"
                )

    def __iter__(self) -> Iterator[Array | FarmError]:
        """Yield the vector of each point, or the error of a wrong one; without end."""
        if self._shared is not None:
            while True:
                yield self._shared
        count = 0
        for value in self._each:
            count += 1
            try:
                yield numbers(value, _FLOAT64, self._key).reshape(-1)
            except FarmError as error:
                yield error
        while True:
            yield InvalidInput(f"{self._key} has {count} vectors; expected one for each point")


class _NoVectors:
    """Stands for the vectors that an operation does not take."""

    def only(self) -> None:
        return None

    def check_count(self, points: Iterable[Any]) -> None:
        """Accept any number of points."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


_NONE: Vectors | _NoVectors = _NoVectors()


def _checked(vector: Array | FarmError | None) -> Array | None:
    if isinstance(vector, FarmError):
        raise vector
    return vector


def _is_array(value: Any) -> bool:
    """Whether a value is numbers at once, and not an iterable that gives one vector after another.

    Arrays of other libraries have `__array__`.
    """
    return np.isscalar(value) or isinstance(value, Sequence) or hasattr(value, "__array__")


def _position(which: int | str, tensors: Sequence[TensorInfo], what: str) -> int:
    """Return the position of a tensor given by name or position. Raises InvalidInput."""
    if isinstance(which, str):
        for i, tensor in enumerate(tensors):
            if tensor.name == which:
                return i
        raise InvalidInput(f"no {what} is named {which!r}; the {what}s are {shown(tensors)}")
    index = operator.index(which)
    if not 0 <= index < len(tensors):
        raise InvalidInput(
            f"no {what} has position {index}, counted from 0; the {what}s are {shown(tensors)}"
        )
    return index
