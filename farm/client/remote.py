"""A served model as an object: evaluate it, map it over points, differentiate it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from farm.call import DERIVATIVES, Array, Call, ModelInfo, Operation, Result, canonical_config
from farm.client.derivatives import Derivatives
from farm.client.flow import IN_FLIGHT, Flow
from farm.client.line import Outcome, submit, waited_for
from farm.client.values import Output, Point, Values
from farm.errors import FarmError, InvalidInput
from farm.wording import briefly, short

if TYPE_CHECKING:
    from farm.client.client import Client

Config = Mapping[str, Any]
Request = Values | Derivatives
GivesOneArray = Literal["evaluate", "gradient", "apply_jacobian", "apply_hessian"]
Vectors = ArrayLike | Iterable[ArrayLike]

BYTES_IN_FLIGHT = 512 * 1024**2
"""Most bytes of inputs and outputs in flight for one `map`, which matters for long vectors."""

LEAST_IN_FLIGHT = 64

_EMPTY = canonical_config(None)

CONFIGS_KEPT = 256
"""Most descriptions cached by config; a new config for each call must not fill the memory."""


class Which(TypedDict, total=False):
    """Keywords of `submit`, `map` and their like that say which derivative; see `map`."""

    out: int | str
    wrt: int | str
    wrt2: int | str | None
    sens: Vectors | None
    vec: Vectors | None


class RemoteModel:
    """A served model. Threads may share it; a pickled one reconnects when it is unpickled.

    A point is a dict by input name; for a model with several inputs also a sequence in order; for a
    model with one input also the array itself. An output is an array, or for a model with several
    outputs a dict by name. Arrays have the model's shapes; a flat array of the right length is
    accepted too. `config` selects a variant of the model and may change the shapes.

    A failed call raises a FarmError; its class tells the kind of failure.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self.client = client
        self._values: dict[str, Values] = {}

    @property
    @briefly(FarmError)
    def info(self) -> ModelInfo:
        """The model's description for the empty config."""
        return self._values_for(None).info

    @briefly(FarmError)
    def describe(self, config: Config | None = None) -> ModelInfo:
        """Return the model's description for a config: names, shapes, operations."""
        return self._values_for(config).info

    # One point

    @briefly(FarmError)
    def evaluate(self, point: Point, config: Config | None = None) -> Output:
        """Evaluate the model at a point and return the output."""
        values, client = self._values_for(config), self.client
        return waited_for(client.line, values.call(point), client.hints, values.output)

    __call__ = evaluate

    @briefly(FarmError)
    def gradient(
        self,
        out_wrt: int | str,
        in_wrt: int | str,
        point: Point,
        sens: ArrayLike | None,
        config: Config | None = None,
    ) -> Array:
        """Return J^T sens in the shape of input `in_wrt`.

        out_wrt, in_wrt: by name, or by position from 0; sens: same shape as output `out_wrt`; None,
        if that output has one entry: 1.0.
        """
        which: Which = {"out": out_wrt, "wrt": in_wrt, "sens": sens}
        result: Array = self._output(point, config, "gradient", **which)
        return result

    @briefly(FarmError)
    def value_and_gradient(
        self,
        out_wrt: int | str,
        in_wrt: int | str,
        point: Point,
        sens: ArrayLike | None,
        config: Config | None = None,
    ) -> tuple[Output, Array]:
        """Return what `evaluate` and `gradient` return, from one call.

        The model computes both at once if it can; otherwise the farm evaluates and differentiates.
        """
        which: Which = {"out": out_wrt, "wrt": in_wrt, "sens": sens}
        pair: tuple[Output, Array] = self._output(point, config, "value_and_gradient", **which)
        return pair

    @briefly(FarmError)
    def apply_jacobian(
        self,
        out_wrt: int | str,
        in_wrt: int | str,
        point: Point,
        vec: ArrayLike,
        config: Config | None = None,
    ) -> Array:
        """Return J vec in the shape of output `out_wrt`; vec: same shape as input `in_wrt`."""
        which: Which = {"out": out_wrt, "wrt": in_wrt, "vec": vec}
        result: Array = self._output(point, config, "apply_jacobian", **which)
        return result

    @briefly(FarmError)
    def apply_hessian(
        self,
        out_wrt: int | str,
        in_wrt1: int | str,
        in_wrt2: int | str,
        point: Point,
        sens: ArrayLike | None,
        vec: ArrayLike,
        config: Config | None = None,
    ) -> Array:
        """Return the derivative of J^T sens along `vec` in input `in_wrt2`, in input 1's shape.

        J is the Jacobian with respect to `in_wrt1`. sens: same shape as output `out_wrt`; vec: same
        shape as input `in_wrt2`; the result has the shape of input `in_wrt1`.
        """
        which: Which = {"out": out_wrt, "wrt": in_wrt1, "wrt2": in_wrt2, "sens": sens, "vec": vec}
        result: Array = self._output(point, config, "apply_hessian", **which)
        return result

    def _output(
        self, point: Point, config: Config | None, operation: str, **which: Unpack[Which]
    ) -> Output:
        """Return what `submit` with these arguments finds; an interruption cancels the call."""
        request = self._request(config, operation, **which)
        client = self.client
        return waited_for(client.line, request.call(point), client.hints, request.output)

    @briefly(FarmError)
    async def aevaluate(
        self,
        point: Point,
        config: Config | None = None,
        *,
        operation: str = "evaluate",
        **which: Unpack[Which],
    ) -> Output:
        """Return what `submit` with these arguments finds; cancelling the wait cancels the call."""
        await self._describe_on_loop(config)
        asked = self.submit(point, config, operation=operation, **which)
        try:
            return await asyncio.wrap_future(asked)
        finally:
            asked.cancel()

    # Many points

    @briefly(FarmError)
    def submit(
        self,
        point: Point,
        config: Config | None = None,
        *,
        operation: str = "evaluate",
        **which: Unpack[Which],
    ) -> Future[Output]:
        """Submit a point and return a future of its output; `cancel()` cancels the call.

        operation and what follows: as for `map`, for one point.
        """
        request = self._request(config, operation, **which)
        client = self.client
        return submit(client.line, request.call(point), client.hints, request.output)

    @overload
    def map(  # type: ignore[overload-overlap]  # an array is an iterable of points, and more
        self,
        points: Array,
        config: Config | None = None,
        *,
        operation: GivesOneArray = "evaluate",
        return_errors: Literal[False] = False,
        in_flight: int | None = None,
        **which: Unpack[Which],
    ) -> Array: ...

    @overload
    def map(  # type: ignore[overload-overlap]  # as above
        self,
        points: Array,
        config: Config | None = None,
        *,
        operation: Literal["value_and_gradient"],
        return_errors: Literal[False] = False,
        in_flight: int | None = None,
        **which: Unpack[Which],
    ) -> tuple[Array, Array]: ...

    @overload
    def map(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        operation: str = "evaluate",
        return_errors: bool = False,
        in_flight: int | None = None,
        **which: Unpack[Which],
    ) -> Iterator[Output]: ...

    @briefly(FarmError)
    def map(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        operation: str = "evaluate",
        out: int | str = 0,
        wrt: int | str = 0,
        wrt2: int | str | None = None,
        sens: Vectors | None = None,
        vec: Vectors | None = None,
        return_errors: bool = False,
        in_flight: int | None = None,
    ) -> Array | tuple[Array, Array] | Iterator[Output]:
        """Return the outputs at many points, in their order, or derivatives there.

        For a model with one input and one output, an array of shape (N, *input shape) gives an
        array (N, *output shape). Any other iterable of points gives an iterator of outputs; it
        consumes points as the farm has room.

        operation: "evaluate", "gradient" (J^T sens), "apply_jacobian" (J vec), "apply_hessian" or
        "value_and_gradient", which gives pairs, or for an array of points a pair of arrays. out,
        wrt, wrt2: the output and the inputs, by name or position, of a derivative; wrt2, of
        apply_hessian, is `wrt` if it is not given. sens, vec: one for all points, in the shape of
        output `out` or of the input; or one for each point, with one more leading axis or as an
        iterable. sens may be left out if output `out` has one entry: it is 1.0.
        return_errors: yield a FarmError in place of an output instead of raising it; the result is
        then always an iterator. in_flight: most points that are sent but whose outputs are not yet
        taken; the default is some thousands, fewer for long vectors.
        """
        request = self._request(config, operation, out, wrt, wrt2, sens, vec)
        if isinstance(points, np.ndarray) and points.dtype != object and not return_errors:
            outputs: Array | tuple[Array, Array] = self._map_array(request, points, in_flight)
            return outputs
        flow = self._flow(request, request.calls(points), in_flight=in_flight)
        return _outputs(flow, request, return_errors)

    @briefly(FarmError)
    def as_completed(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        operation: str = "evaluate",
        return_errors: bool = False,
        in_flight: int | None = None,
        **which: Unpack[Which],
    ) -> Iterator[tuple[int, Output]]:
        """Yield (index, output) of each point as it finishes; otherwise like `map`."""
        request = self._request(config, operation, **which)
        flow = self._flow(request, request.calls(points), ordered=False, in_flight=in_flight)
        return _outputs_by_index(flow, request, return_errors)

    @briefly(FarmError)
    async def amap(
        self,
        points: Iterable[Point],
        config: Config | None = None,
        *,
        operation: str = "evaluate",
        return_errors: bool = False,
        in_flight: int | None = None,
        **which: Unpack[Which],
    ) -> AsyncIterator[Output]:
        """Yield the outputs at many points in their order, for `async for`; see `map`.

        Points are read on the event loop as there is room, so reading one must not block.
        Cancelling the task cancels the open calls.
        """
        await self._describe_on_loop(config)
        request = self._request(config, operation, **which)
        flow = self._flow(request, request.calls(points), in_flight=in_flight, eager=False)
        async with contextlib.aclosing(flow.on_loop()) as outcomes:
            async for index, outcome in outcomes:
                yield _output(request, index, outcome, return_errors)

    def _map_array(self, request: Request, points: Array, in_flight: int | None) -> Any:
        calls = request.table(points)
        outputs = request.room(len(points))
        for index, outcome in self._flow(request, calls, ordered=False, in_flight=in_flight):
            if isinstance(outcome, FarmError):
                raise _at(index, outcome)
            request.put(outcome, outputs, index)
        return outputs

    def _flow(
        self,
        request: Request,
        calls: Iterable[Call | FarmError],
        *,
        ordered: bool = True,
        in_flight: int | None,
        eager: bool = True,
    ) -> Flow:
        line, hints, most = self.client.line, self.client.hints, _in_flight(request, in_flight)
        return Flow(line, calls, hints, ordered=ordered, in_flight=most, eager=eager)

    def _request(
        self,
        config: Config | None,
        operation: str,
        out: int | str = 0,
        wrt: int | str = 0,
        wrt2: int | str | None = None,
        sens: Any = None,
        vec: Any = None,
    ) -> Request:
        values = self._values_for(config)
        if operation == Operation.EVALUATE:
            if sens is not None or vec is not None:
                raise InvalidInput("evaluate takes neither sens nor vec; derivatives do")
            return values
        if operation not in DERIVATIVES:
            offered = ", ".join([Operation.EVALUATE, *sorted(DERIVATIVES)])
            raise ValueError(f"operation is {operation!r}; expected {offered}")
        of = Operation(operation)
        return Derivatives(values, of, out=out, wrt=wrt, wrt2=wrt2, sens=sens, vec=vec)

    async def _describe_on_loop(self, config: Config | None) -> None:
        """Get the model's description for a config, if it is not known, without blocking."""
        if _key_of(config) not in self._values:
            await asyncio.to_thread(self._values_for, config)

    def _values_for(self, config: Config | None) -> Values:
        key = _EMPTY if config is None else _key_of(config)
        values = self._values.get(key)
        if values is None:
            info = self.client.line.describe(self.name, key)
            while len(self._values) >= CONFIGS_KEPT:
                self._values.pop(next(iter(self._values)), None)
            values = self._values[key] = Values(info, key)
        return values

    def __repr__(self) -> str:
        return f"<RemoteModel {self.name!r}>"

    def _repr_html_(self) -> str:
        """Return inputs and outputs as a table, if the farm answers."""
        head = f"<code>{escape(f'{self!r} of {self.client!r}')}</code>"
        try:
            info = self.describe()
        except FarmError:
            return head
        from farm.report.page import tensors

        offers = ", ".join(sorted(info.operations))
        about = escape(f"{info.description} " if info.description else "") + escape(offers)
        return f"{head}{tensors(info)}<small>{about}</small>"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteModel, (self.client, self.name)


def _key_of(config: Any) -> str:
    """Return the canonical text of a config. Raises InvalidInput if it is not JSON data."""
    try:
        return canonical_config(config)
    except (TypeError, ValueError) as error:
        two = config is not None and not isinstance(config, Mapping)
        remedy = "; several inputs are one argument, as model([a, b])" if two else ""
        raise InvalidInput(f"{error}{remedy}") from None


@briefly(FarmError)
def _outputs(flow: Flow, request: Request, return_errors: bool) -> Iterator[Output]:
    for _, output in _outputs_by_index(flow, request, return_errors):
        yield output


@briefly(FarmError)
def _outputs_by_index(
    flow: Flow, request: Request, return_errors: bool
) -> Iterator[tuple[int, Output]]:
    try:
        for index, outcome in flow:
            yield index, _output(request, index, outcome, return_errors)
    finally:
        flow.close()


def _output(request: Request, index: int, outcome: Outcome, return_errors: bool) -> Output:
    """Return the output of a point, or its error if it is not to be raised."""
    try:
        if not isinstance(outcome, Result):
            raise outcome
        return request.output(outcome)
    except FarmError as error:
        if not return_errors:
            raise _at(index, error) from None
        return error


def _in_flight(request: Request, wanted: int | None) -> int:
    """Return how many calls of a request may be in flight. Raises ValueError."""
    if wanted is None:
        fitting = BYTES_IN_FLIGHT // max(1, request.nbytes)
        return max(LEAST_IN_FLIGHT, min(IN_FLIGHT, fitting))
    if wanted < 1:
        raise ValueError(f"in_flight is {wanted}; expected 1 or more")
    return wanted


def _at(index: int, error: FarmError) -> FarmError:
    error.__notes__ = [f"at point {index}", *getattr(error, "__notes__", ())]
    return short(error)
