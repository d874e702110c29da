"""A model that is served somewhere, as an object: call it, map it over points, differentiate it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from farm.call import (
    Array,
    Call,
    ModelInfo,
    Operation,
    Result,
    canonical_config,
)
from farm.client.flow import IN_FLIGHT, Flow
from farm.client.values import Output, Point, Values
from farm.errors import FarmError
from farm.transports.line import submit

if TYPE_CHECKING:
    from farm.client.client import Client

T = TypeVar("T")
Config = Mapping[str, Any]

BYTES_IN_FLIGHT = 512 * 1024**2
"""Bounds the calls of one `map` that are under way where vectors are long."""

LEAST_IN_FLIGHT = 64

CONFIGS_KEPT = 256
"""Descriptions kept by config; a config for each call must not fill the memory."""


class RemoteModel:
    """A served model. Threads may share it; pickled, it connects anew where it is unpickled.

    A point is a dict by input name; for a model of several inputs a sequence in order; for a model
    of one input the array itself. An output is an array, or for models of several outputs a dict
    by name. Shapes are the model's own; a flat array of the right length is taken too. `config`
    selects a variant of the model and may change the shapes.

    What goes wrong with a call raises a FarmError whose class says what.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client
        self._values: dict[str, Values] = {}

    @property
    def info(self) -> ModelInfo:
        """What the model says of itself for the empty config."""
        return self.describe()

    def describe(self, config: Config | None = None) -> ModelInfo:
        """What the model says of itself for a config: names, shapes, operations."""
        return self._values_for(config).info

    # One point

    def __call__(self, point: Point, config: Config | None = None) -> Output:
        """The output at a point; waits for it."""
        return self.evaluate(point, config)

    def evaluate(self, point: Point, config: Config | None = None) -> Output:
        """The output at a point; waits for it."""
        return _waited_for(self.submit(point, config))

    def gradient(
        self,
        out_wrt: int | str,
        in_wrt: int | str,
        point: Point,
        sens: ArrayLike,
        config: Config | None = None,
    ) -> Array:
        """J^T sens, in the shape of input `in_wrt`.

        out_wrt, in_wrt: by name, or by position from 0; sens: like output `out_wrt`.
        """
        values = self._values_for(config)
        call = values.derivative(Operation.GRADIENT, point, out_wrt, in_wrt, sens=sens)
        return self._derivative(values, call)

    def apply_jacobian(
        self,
        out_wrt: int | str,
        in_wrt: int | str,
        point: Point,
        vec: ArrayLike,
        config: Config | None = None,
    ) -> Array:
        """J vec, in the shape of output `out_wrt`; vec: like input `in_wrt`."""
        values = self._values_for(config)
        call = values.derivative(Operation.APPLY_JACOBIAN, point, out_wrt, in_wrt, vec=vec)
        return self._derivative(values, call)

    def apply_hessian(
        self,
        out_wrt: int | str,
        in_wrt1: int | str,
        in_wrt2: int | str,
        point: Point,
        sens: ArrayLike,
        vec: ArrayLike,
        config: Config | None = None,
    ) -> Array:
        """The derivative of J^T sens, J being that by `in_wrt1`, along `vec` in input `in_wrt2`.

        sens: like output `out_wrt`; vec: like input `in_wrt2`; the answer: like input `in_wrt1`.
        """
        values = self._values_for(config)
        call = values.derivative(
            Operation.APPLY_HESSIAN, point, out_wrt, in_wrt1, in_wrt2, sens=sens, vec=vec
        )
        return self._derivative(values, call)

    def _derivative(self, values: Values, call: Call) -> Array:
        client = self._client
        convert = partial(values.derivative_output, call)
        return _waited_for(submit(client.line, call, client.hints, convert))

    # Many points

    def submit(self, point: Point, config: Config | None = None) -> Future[Output]:
        """The output to come; `cancel()` takes the call back."""
        values = self._values_for(config)
        client = self._client
        return submit(client.line, values.call(point), client.hints, values.output)

    @overload
    def map(  # type: ignore[overload-overlap]  # an array is an iterable of points, and more
        self,
        points: Array,
        config: Config | None = None,
        *,
        return_errors: Literal[False] = False,
        in_flight: int | None = None,
    ) -> Array: ...

    @overload
    def map(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        return_errors: bool = False,
        in_flight: int | None = None,
    ) -> Iterator[Output]: ...

    def map(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        return_errors: bool = False,
        in_flight: int | None = None,
    ) -> Array | Iterator[Output]:
        """The outputs at many points, in their order.

        An array of shape (N, *input shape) gives an array (N, *output shape), for models of one
        input and one output. Any other iterable of points gives an iterator of outputs; points are
        taken from it as the farm has room.

        return_errors: give a FarmError in place of an output, instead of raising it at its place;
        the outcome is an iterator then. in_flight: points that are sent and not yet taken, if the
        default, some thousands, does not suit.
        """
        values = self._values_for(config)
        if isinstance(points, np.ndarray) and points.dtype != object and not return_errors:
            return self._map_array(values, points, in_flight)
        flow = self._flow(values, points, ordered=True, in_flight=in_flight)
        return (output for _, output in _outputs(flow, values, return_errors))

    def as_completed(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        return_errors: bool = False,
        in_flight: int | None = None,
    ) -> Iterator[tuple[int, Output]]:
        """(index, output) of each point, as they finish; otherwise as `map`."""
        values = self._values_for(config)
        flow = self._flow(values, points, ordered=False, in_flight=in_flight)
        return _outputs(flow, values, return_errors)

    def _map_array(self, values: Values, points: Array, in_flight: int | None) -> Array:
        calls = values.table(points)
        outputs = values.room(len(points))
        for index, outcome in self._flow_of(values, calls, ordered=False, in_flight=in_flight):
            if isinstance(outcome, FarmError):
                raise _at(index, outcome)
            values.put_output(outcome, outputs[index])
        return outputs

    def _flow(
        self, values: Values, points: Iterable[Point], *, ordered: bool, in_flight: int | None
    ) -> Flow:
        def calls() -> Iterator[Call | FarmError]:
            for point in points:
                try:
                    yield values.call(point)
                except FarmError as error:
                    yield error

        return self._flow_of(values, calls(), ordered=ordered, in_flight=in_flight)

    def _flow_of(
        self,
        values: Values,
        calls: Iterable[Call | FarmError],
        *,
        ordered: bool,
        in_flight: int | None,
    ) -> Flow:
        if in_flight is None:
            fitting = BYTES_IN_FLIGHT // max(1, values.nbytes)
            in_flight = max(LEAST_IN_FLIGHT, min(IN_FLIGHT, fitting))
        elif in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; expected 1 or more")
        client = self._client
        return Flow(client.line, calls, client.hints, ordered=ordered, in_flight=in_flight)

    def _values_for(self, config: Config | None) -> Values:
        key = canonical_config(config)
        values = self._values.get(key)
        if values is None:
            info = self._client.line.describe(self.name, key)
            while len(self._values) >= CONFIGS_KEPT:
                self._values.pop(next(iter(self._values)), None)
            values = self._values[key] = Values(info, key)
        return values

    def __repr__(self) -> str:
        return f"<RemoteModel {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteModel, (self._client, self.name)


def _outputs(flow: Flow, values: Values, return_errors: bool) -> Iterator[tuple[int, Output]]:
    try:
        for index, outcome in flow:
            try:
                if not isinstance(outcome, Result):
                    raise outcome
                output = values.output(outcome)
            except FarmError as error:
                if not return_errors:
                    raise _at(index, error) from None
                output = error
            yield index, output
    finally:
        flow.close()


def _at(index: int, error: FarmError) -> FarmError:
    error.add_note(f"at point {index}")
    return error


def _waited_for(future: Future[T]) -> T:
    """The future's result; the call is taken back when the wait is interrupted, as by Ctrl-C."""
    try:
        return future.result()
    finally:
        future.cancel()
