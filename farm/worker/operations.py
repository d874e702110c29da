"""Runs one operation of a model: gives the model its arguments, times it, checks its answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import repeat
from time import perf_counter
from typing import Any

import numpy as np

from farm.call import (
    EMPTY_CONFIG,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    Result,
    halves,
    joined,
    numpy_dtype,
)
from farm.errors import InvalidInput, InvalidOutput
from farm.functions import vectors_of
from farm.model import (
    Config,
    Inputs,
    Model,
    check_outputs,
    checked_array,
    inputs_for,
    shape_of,
)
from farm.sequences import Sequence


def evaluate(model: Model, info: ModelInfo, call: Call, *sequence: Sequence) -> Result:
    """Evaluate a model without a batch axis; a call of one row keeps that row's axis.

    sequence: the state of a stateful model.
    """
    inputs = inputs_for(call if call.rows is None else _single_row(call, info), info)
    config = {} if call.config == EMPTY_CONFIG else config_of(call)
    start = perf_counter()
    value = model.evaluate(inputs, config, *sequence)
    run_time = perf_counter() - start
    outputs = tuple(map(np.ndarray.copy, check_outputs(value, info)))
    if call.rows is not None:
        outputs = tuple([output[None] for output in outputs])
    return Result(outputs, run_time)


def inputs_of_rows(call: Call, info: ModelInfo) -> Iterator[Inputs]:
    """Yield the inputs of each row of a call, as `inputs_for` does, when that row begins."""
    columns: list[Iterator[Array]] = []
    for tensor, array in zip(info.inputs, call.inputs, strict=True):
        if array.ndim > 1 and array.shape[1:] == tensor.shape and array.dtype == tensor.dtype:
            columns.append(map(np.ndarray.copy, array))
    if columns and len(columns) == len(call.inputs):  # without a function call for each row
        names = [tensor.name for tensor in info.inputs]
        return map(Inputs, map(zip, repeat(names), zip(*columns, strict=True)))
    given = [[array[row, ...] for array in call.inputs] for row in range(call.rows or 1)]
    return (inputs_for(replace(call, rows=None, inputs=tuple(row)), info) for row in given)


def evaluate_rows(model: Model, info: ModelInfo, calls: Items[Call]) -> list[Result]:
    """Evaluate the rows of all calls, which share one config, in one evaluation."""
    counts = [call.rows or 1 for call in calls]
    rows = sum(counts)
    if rows > info.max_batch:
        raise InvalidInput(
            f"the call has {rows} rows, model {info.name!r} takes at most {info.max_batch}; "
            "send fewer rows a call"
        )
    inputs = Inputs()
    for k, tensor in enumerate(info.inputs):
        parts = []
        for call, count in zip(calls, counts, strict=True):
            array = call.inputs[k]
            shape = (count, *shape_of(array, tensor, call.rows)[call.rows is not None :])
            parts.append(array.reshape(shape))
        # The casts were checked call by call.
        dtype = numpy_dtype(tensor.dtype)
        inputs[tensor.name] = np.concatenate(parts, dtype=dtype, casting="unsafe")
    config = config_of(calls[0])
    start = perf_counter()
    value = model.evaluate(inputs, config)
    run_time = perf_counter() - start
    outputs = check_outputs(value, info, rows=rows)
    results = []
    first = 0
    for call, count in zip(calls, counts, strict=True):
        part = first if call.rows is None else slice(first, first + count)
        # A copy of each part: views would keep the whole batch alive as long as one of them.
        parts_of = tuple(_own(output[part]) for output in outputs)
        results.append(Result(parts_of, run_time, batch_rows=rows))
        first += count
    return results


def _own(part: Any) -> Array:
    """Return a copy of a row or rows; numpy returns bytes, not an array, for a scalar row."""
    if isinstance(part, np.ndarray | np.generic):
        return np.array(part)
    array = np.empty((), dtype=object)
    array[()] = part
    return array


def answers_of(model: Model, info: ModelInfo, call: Call) -> Iterator[Result]:
    """Yield each answer of a stream, with its run time, and the end marker."""
    question = _single_row(call, info)
    began = start = perf_counter()
    answers = getattr(model, call.operation.value)(inputs_for(question, info), config_of(call))
    with contextlib.closing(answers) if hasattr(answers, "close") else contextlib.nullcontext():
        for value in answers:
            run_time = perf_counter() - start
            outputs = tuple(output.copy() for output in check_outputs(value, info))
            if call.rows is not None:
                outputs = tuple(output[None] for output in outputs)
            yield Result(outputs, run_time, more=True)
            start = perf_counter()
    yield Result((), perf_counter() - began)


def _single_row(call: Call, info: ModelInfo) -> Call:
    """Return the call without its batch axis. Raises InvalidInput if it has several rows."""
    if call.rows is None:
        return call
    if call.rows != 1:
        raise InvalidInput(
            f"the call has {call.rows} rows, model {info.name!r} takes one at a time; "
            "send each row as its own call"
        )
    return replace(call, rows=None, inputs=tuple(a.reshape(a.shape[1:]) for a in call.inputs))


def derivative(model: Model, info: ModelInfo, call: Call) -> Result:
    """Differentiate a model at a point; the result is flat."""
    wrt = call.derivative
    assert wrt is not None  # guaranteed by check_call
    value, run_time = _differentiated(model, info, call, wrt)
    by_output = call.operation is Operation.APPLY_JACOBIAN
    like = info.outputs[wrt.out_wrt] if by_output else info.inputs[wrt.in_wrt]
    what = f"{call.operation} of model {info.name!r}"
    array = checked_array(value, like.shape, "float64", what)
    return Result((array.reshape(-1).copy(),), run_time)


def value_and_gradient(model: Model, info: ModelInfo, call: Call) -> Result:
    """Return the outputs at a point and, last, the flat gradient.

    A model that does not define it evaluates first: it may keep what its gradient needs.
    """
    if Operation.VALUE_AND_GRADIENT not in info.operations:
        evaluation, gradient = halves(call)
        if info.max_batch > 1:
            value = evaluate_rows(model, info, [evaluation])[0]
        else:
            value = evaluate(model, info, evaluation)
        return joined(value, derivative(model, info, gradient))
    wrt = call.derivative
    assert wrt is not None  # guaranteed by check_call
    pair, run_time = _differentiated(model, info, call, wrt)
    what = f"{call.operation} of model {info.name!r}"
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        size = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
        raise InvalidOutput(
            f"{what} returned a {type(pair).__name__}{size}; expected a pair (outputs, gradient)"
        )
    outputs = [output.copy() for output in check_outputs(pair[0], info)]
    array = checked_array(pair[1], info.inputs[wrt.in_wrt].shape, "float64", what)
    return Result((*outputs, array.reshape(-1).copy()), run_time)


def _differentiated(
    model: Model, info: ModelInfo, call: Call, wrt: Derivative
) -> tuple[Any, float]:
    """Return what the model's method for a derivative returns, and its run time."""
    operation = call.operation
    positions = [wrt.out_wrt, wrt.in_wrt]
    if operation is Operation.APPLY_HESSIAN:
        positions.append(wrt.in_wrt2)
    sens, vec = (wrt.sens, info.outputs[wrt.out_wrt]), (wrt.vec, info.inputs[positions[-1]])
    given = vectors_of(operation, sens, vec)
    vectors = [np.array(vector, np.float64).reshape(like.shape) for vector, like in given]
    inputs, config = inputs_for(call, info), config_of(call)
    function = getattr(model, operation.value)
    start = perf_counter()
    value = function(*positions, inputs, *vectors, config)
    return value, perf_counter() - start


def costs(model: Model, info: ModelInfo, call: Call) -> Result:
    """Ask the model for the cost of each row; like inputs, the answer of a single row has no axis.

    The method gets one row at a time, also from a model with batches.
    """
    function = getattr(model, call.operation.value)
    costs = np.empty((call.rows or 1, 1))
    run_time = 0.0
    for row in range(len(costs)):
        inputs = call.inputs if call.rows is None else tuple([a[row] for a in call.inputs])
        asked = inputs_for(Call(call.model, call.operation, inputs), info)
        config = config_of(call)
        start = perf_counter()
        value = function(asked, config)
        run_time += perf_counter() - start
        costs[row] = _cost(value, info, row)
    return Result((costs if call.rows is not None else costs[0],), run_time)


def _cost(value: Any, info: ModelInfo, row: int) -> float:
    try:
        cost = float(np.asarray(value, np.float64).item())
    except (TypeError, ValueError):
        cost = np.nan
    if not (np.isfinite(cost) and cost >= 0):
        text = " ".join(repr(value)[:80].split())
        raise InvalidOutput(
            f"cost of model {info.name!r} is {text} for row {row} (counted from 0); "
            "expected a finite number, 0 or more"
        )
    return cost


def config_of(call: Call) -> Config:
    """Return a new config of a call. Raises InvalidInput if it is no JSON object."""
    if call.config == EMPTY_CONFIG:
        return {}
    try:
        config = json.loads(call.config)
    except ValueError as error:
        raise InvalidInput(f"config is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidInput(f"config must be a JSON object, got {type(config).__name__}")
    return config
