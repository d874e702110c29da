"""The Model class that users subclass, and the checks of calls against a model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.call import (
    BYTES,
    DERIVATIVES,
    TAKE_SENS,
    TAKE_VEC,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    TensorInfo,
    numpy_dtype,
)
from farm.declared import Tensors, check_keys, labelled, tensors_of
from farm.dtypes import bytes_array, casts, shown_kind, unfit
from farm.errors import FarmError, InvalidInput, InvalidOutput, UnsupportedFeature
from farm.sequences import SequenceLimits, limits_of

Config = dict[str, Any]


def tensor(
    shape: int | Sequence[int] = (),
    dtype: str = "float64",
    *,
    unit: str = "",
    description: str = "",
    format: str = "",
) -> TensorInfo:
    """Return an input or output of a model that says more than its shape; its key names it.

    `inputs = {"E": farm.tensor(3, unit="Pa", description="Young's modulus of each layer")}`. An int
    n means (n,), without a shape it is a single number. A description may have several lines, as in
    a text of triple quotes; they are joined. format: of images, NCHW or NHWC. Raises as
    `TensorInfo`.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    one_line = " ".join(description.split()) if isinstance(description, str) else description
    return TensorInfo("", sizes, dtype, unit, one_line, format=format)


class Inputs(dict[str, Array]):
    """The arrays of one call, by name as in `inputs["E"]` or by position as in `inputs[0]`."""

    if TYPE_CHECKING:  # the dictionary's own lookup handles both, with __missing__

        def __getitem__(self, key: str | int) -> Array: ...

    def __missing__(self, key: object) -> Array:
        if isinstance(key, int):
            return list(self.values())[key]
        raise KeyError(f"{key!r} is not an input; the inputs are {list(self)}")


class Model:
    """A model F: inputs -> outputs; subclass it, set the two dictionaries and write `evaluate`.

    inputs, outputs: name -> shape of one evaluation; an int n means (n,); the dtype is float64.
    `farm.tensor(shape, dtype, unit=..., description=...)` in place of a shape says more. Override
    `describe` for sizes that depend on the config; a size of -1 may differ from call to call.
    max_batch: when above 1, `evaluate` takes and returns arrays with a leading batch axis.
    repeatable: False means that each call runs at most once, and fails if its worker is lost.
    keeps_point: True means that it keeps what `evaluate` found, such as the solution that an
    adjoint needs: derivatives then go to the worker that evaluated the same inputs last, if it is
    free. They may still run on any other worker.
    copies: False means that a call that runs long is never copied to an idle worker: set it if two
    runs of one call disturb each other, for example because they write the same files.
    labels: names of the entries of outputs, such as {"score": ["cat", "dog"]}, for protocols that
    name the best ones.
    stateful: True means that it keeps a state for each sequence of requests. `evaluate` then has a
    third argument, the `farm.Sequence`: the requests of one sequence run in order on one worker.
    max_sequences: how many sequences a worker keeps at a time; sequence_idle_s: seconds without a
    request after which one ends.
    version: any text; change it whenever the model's answers may change, as those of a new solver.
    A farm with a record then never gives old answers (docs/record.md).
    Optional methods; a model supports those that it defines. `out_wrt` and `in_wrt` are positions
    that count from 0 (source: UM-Bridge protocol 1.0):

    gradient(out_wrt, in_wrt, inputs, sens, config)                    -> J^T sens, like the input
    apply_jacobian(out_wrt, in_wrt, inputs, vec, config)               -> J vec, like the output
    apply_hessian(out_wrt, in_wrt1, in_wrt2, inputs, sens, vec, config) -> like input in_wrt1

    for callers that need both at one point, if together they cost less than one after the other

    value_and_gradient(out_wrt, in_wrt, inputs, sens, config)   -> what evaluate returns for one
                              point, and what gradient returns: a pair

    for the order of a sweep

    cost(inputs, config)      expected run time of one evaluation in any unit, as a number; inputs
                              have no batch axis

    and for protocols that carry several answers to one request

    stream(inputs, config)    a generator of outputs, each in a form that `evaluate` may return
    """

    name: str = ""
    description: str = ""
    inputs: Tensors = {}
    outputs: Tensors = {}
    max_batch: int = 1
    repeatable: bool = True
    keeps_point: bool = False
    copies: bool = True
    labels: Mapping[str, Sequence[str]] = {}
    stateful: bool = False
    max_sequences: int = 64
    sequence_idle_s: float = 60.0
    version: str = ""
    comm: Any = None
    """With `--mpi N`: the mpi4py communicator of the N ranks that run this model."""
    config_keys: Collection[str] | None = None
    """The keys that a config may have; others are refused. None: any."""
    operations: frozenset[Operation] | None = None
    """The operations that the model offers; None: those whose methods it defines."""

    def __repr__(self) -> str:
        name = self.name or type(self).__name__
        return f"<{type(self).__name__} {name}: {_shown(self.inputs)} -> {_shown(self.outputs)}>"

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the inputs and outputs for this config; override it if sizes depend on it."""
        return self.inputs, self.outputs

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the outputs: a dict by name, a sequence in order, or the only output's array."""
        raise NotImplementedError(f"{type(self).__name__} defines no evaluate")


def _shown(tensors: Tensors) -> str:
    shapes: dict[str, Any] = {n: getattr(size, "shape", size) for n, size in tensors.items()}
    return ", ".join(f"{n} {[s] if isinstance(s, int) else list(s)}" for n, s in shapes.items())


_FLOAT64 = np.dtype(np.float64)

OPTIONAL_OPERATIONS = DERIVATIVES | {Operation.STREAM, Operation.COST}


def operations_of(model: Model) -> frozenset[Operation]:
    """Return the operations a model lists or defines; the base `Model.evaluate` does not count."""
    if model.operations is not None:
        return frozenset(model.operations)
    offered = {op for op in OPTIONAL_OPERATIONS if callable(getattr(model, op.value, None))}
    if type(model).evaluate is not Model.evaluate:
        offered.add(Operation.EVALUATE)
    return frozenset(offered)


def info_of(model: Model, config: Config, *, name: str = "") -> ModelInfo:
    """Return the description of `model` for `config`. Raises InvalidOutput if it is invalid."""
    check_keys(config, model.config_keys, name or model.name)
    described = model.describe(config)
    try:
        inputs, outputs = described
    except (TypeError, ValueError):
        raise InvalidOutput(
            f"describe returned {type(described).__name__}; expected a pair (inputs, outputs)"
        ) from None
    if int(model.max_batch) < 1:
        raise InvalidOutput(f"max_batch is {model.max_batch}; expected 1 or more")
    sequences = _sequences_of(model)
    return ModelInfo(
        name=name or model.name or type(model).__name__,
        inputs=tensors_of(inputs, "input"),
        outputs=labelled(tensors_of(outputs, "output"), model.labels),
        operations=operations_of(model),
        max_batch=int(model.max_batch),
        repeatable=bool(model.repeatable) and sequences is None,
        description=model.description,
        keeps_point=bool(model.keeps_point),
        copies=bool(model.copies) and sequences is None,
        version=str(model.version),
        sequences=sequences,
    )


def _sequences_of(model: Model) -> SequenceLimits | None:
    """Return the limits of a stateful model. Raises InvalidOutput if it cannot be one."""
    if not model.stateful:
        return None
    if operations_of(model) != {Operation.EVALUATE}:
        offered = ", ".join(sorted(operations_of(model))) or "nothing"
        raise InvalidOutput(f"it is stateful and offers {offered}; expected evaluate alone")
    if model.max_batch > 1:
        raise InvalidOutput(
            f"it is stateful and has max_batch = {model.max_batch}; expected 1, as each request "
            "has a state of its own"
        )
    try:
        inspect.signature(model.evaluate).bind({}, {}, {})
    except TypeError:
        raise InvalidOutput(
            "it is stateful, but its evaluate does not take the sequence; expected "
            "evaluate(self, inputs, config, sequence)"
        ) from None
    try:
        return limits_of((model.max_sequences, model.sequence_idle_s))
    except ValueError as error:
        raise InvalidOutput(f"max_sequences and sequence_idle_s: {error}") from None


def check_call(call: Call, info: ModelInfo) -> None:
    """Check that `call` fits the model: operation, number and length of vectors, indices.

    The order of the checks is that of the UM-Bridge conformity suite. Raises UnsupportedFeature or
    InvalidInput with expected and actual values.
    """
    name = info.name
    if call.operation not in info.operations and not info.offers(call.operation):
        offered = ", ".join(sorted(info.operations)) or "none"
        raise UnsupportedFeature(
            f"model {name!r} does not offer {call.operation}; it offers {offered}"
        )
    if (call.step is None) is not (info.sequences is None):
        raise _wrong_step(call, info)
    if len(call.inputs) != len(info.inputs):
        raise InvalidInput(
            f"model {name!r} expects {len(info.inputs)} input vectors, got {len(call.inputs)}"
        )
    if call.rows == 0 and (call.operation is not Operation.EVALUATE or call.step is not None):
        raise InvalidInput(f"the call has no rows; model {name!r} expects one or more")
    for i, (array, tensor) in enumerate(zip(call.inputs, info.inputs, strict=True)):
        usual = array.dtype is _FLOAT64 and array.shape == tensor.shape
        if usual and tensor.dtype == "float64" and call.rows is None:
            continue
        if not _shape_fits(array, tensor, call.rows):
            actual = _lengths(array, tensor, call, name)
            raise InvalidInput(f"input {i} ({tensor.name!r}) has {actual}")
        if array.dtype == tensor.dtype:
            continue
        wanted = numpy_dtype(tensor.dtype)
        if not casts(array.dtype, wanted):
            text = f"input {i} ({tensor.name!r}) is {array.dtype}, model {name!r} expects"
            raise InvalidInput(f"{text} {tensor.dtype}")
        if entry := unfit(array, wanted):
            raise InvalidInput(
                f"input {i} ({tensor.name!r}) holds {entry}, which the type {tensor.dtype} that "
                f"model {name!r} expects cannot hold"
            )
    if call.operation in DERIVATIVES:
        if call.derivative is None or call.rows is not None:
            raise InvalidInput(f"{call.operation} needs its indices and takes no batch of rows")
        _check_derivative(call.operation, call.derivative, info)


def _lengths(array: Array, tensor: TensorInfo, call: Call, name: str) -> str:
    """Return the length or shape of an input and of what its model expects."""
    if array.ndim <= 1 and call.rows is None and not tensor.varies:
        return f"length {array.size}, model {name!r} expects {tensor.size}"
    expected = tensor.shape if call.rows is None else (call.rows, *tensor.shape)
    return f"shape {array.shape}, model {name!r} expects {expected}"


def _wrong_step(call: Call, info: ModelInfo) -> FarmError:
    if call.step is None:
        return UnsupportedFeature(
            f"model {info.name!r} keeps a state for each sequence of requests; call it by KServe "
            "with the parameters sequence_id, sequence_start and sequence_end"
        )
    return UnsupportedFeature(
        f"model {info.name!r} keeps no state for sequences of requests, since any worker may run "
        f"any request; leave out the sequence {call.step.id}, or declare stateful = True"
    )


def _check_derivative(operation: Operation, wrt: Derivative, info: ModelInfo) -> None:
    hessian = operation is Operation.APPLY_HESSIAN
    indices = [("outWrt", wrt.out_wrt, len(info.outputs), "output")]
    indices.append(("inWrt1" if hessian else "inWrt", wrt.in_wrt, len(info.inputs), "input"))
    if hessian:
        indices.append(("inWrt2", wrt.in_wrt2, len(info.inputs), "input"))
    for key, index, count, what in indices:
        if not 0 <= index < count:
            raise InvalidInput(
                f"{key} is {index}, but model {info.name!r} has {count} {what} vectors; "
                f"expected 0 to {count - 1} (indices count from 0)"
            )
    if operation in TAKE_SENS:
        _check_vector("sens", wrt.sens, info.outputs[wrt.out_wrt], f"output {wrt.out_wrt}")
    if operation in TAKE_VEC:
        along = wrt.in_wrt2 if hessian else wrt.in_wrt
        _check_vector("vec", wrt.vec, info.inputs[along], f"input {along}")


def _check_vector(key: str, vector: Array | None, tensor: TensorInfo, like: str) -> None:
    actual = 0 if vector is None else vector.size
    if vector is None or actual != tensor.size or not casts(vector.dtype, numpy_dtype("float64")):
        raise InvalidInput(
            f"{key} has length {actual}, expected {tensor.size} numbers, the length of {like}"
        )


def _shape_fits(array: Array, tensor: TensorInfo, rows: int | None) -> bool:
    """Whether an input has the tensor's shape, or is flat and can be reshaped to it."""
    shape = array.shape
    if rows is not None:
        if shape[:1] != (rows,):
            return False
        shape = shape[1:]
    if tensor.varies:
        return varying_shape(shape, tensor.shape) is not None
    return shape == tensor.shape or (len(shape) == 1 and shape[0] == tensor.size)


def varying_shape(shape: tuple[int, ...], declared: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of an array whose tensor has varying sizes; None if it does not fit.

    A flat array fits if its length determines the one size that varies.
    """
    if len(shape) == len(declared):
        fits = all(d in (-1, n) for n, d in zip(shape, declared, strict=True))
        return shape if fits else None
    known = math.prod(n for n in declared if n != -1)
    if len(shape) != 1 or declared.count(-1) != 1 or not known or shape[0] % known:
        return None
    return tuple(shape[0] // known if n == -1 else n for n in declared)


def _fits_exactly(array: Array, tensor: TensorInfo) -> bool:
    # Compare the type objects: comparing types by name would cost as much as the rest.
    return array.shape == tensor.shape and array.dtype is _FLOAT64 and tensor.dtype == "float64"


def as_declared(call: Call, info: ModelInfo) -> Call:
    """Return the call with its inputs in the shapes and types that the model declares.

    Calls with flat and with shaped inputs can then share a batch. The call must have passed
    `check_call`.
    """
    if call.rows is None and all(map(_fits_exactly, call.inputs, info.inputs)):
        return call  # the usual case
    inputs = []
    for array, tensor in zip(call.inputs, info.inputs, strict=True):
        if array.shape != tensor.shape or call.rows is not None or tensor.varies:
            array = array.reshape(shape_of(array, tensor, call.rows))
        inputs.append(array.astype(numpy_dtype(tensor.dtype), copy=False))
    return replace(call, inputs=tuple(inputs))


def shape_of(array: Array, tensor: TensorInfo, rows: int | None) -> tuple[int, ...]:
    """Return the shape, with batch axis, in which the model takes an input that fits its tensor."""
    lead = () if rows is None else (rows,)
    if not tensor.varies:
        return lead + tensor.shape
    found = varying_shape(array.shape[len(lead) :], tensor.shape)
    assert found is not None, "check_call saw to it"
    return lead + found


def inputs_for(call: Call, info: ModelInfo) -> Inputs:
    """Return the call's arrays for the model: by name, in declared shape and dtype.

    They are copies, which the model may modify: a Call's arrays may be views of a message.
    """
    inputs = Inputs()
    for array, tensor in zip(call.inputs, info.inputs, strict=True):
        usual = array.dtype is _FLOAT64 and array.shape == tensor.shape
        if usual and tensor.dtype == "float64" and call.rows is None:
            inputs[tensor.name] = array.copy()
            continue
        copied = np.array(array, dtype=numpy_dtype(tensor.dtype), order="C")
        inputs[tensor.name] = copied.reshape(shape_of(array, tensor, call.rows))
    return inputs


def check_outputs(value: Any, info: ModelInfo, *, rows: int | None = None) -> tuple[Array, ...]:
    """Return the model's answer as one array per declared output, with a batch axis if `rows`.

    Raises InvalidOutput, with expected and actual values, if it does not match the declaration.
    """
    lead = () if rows is None else (rows,)
    if len(info.outputs) == 1 and (only := info.outputs[0]).dtype == "float64":  # usual cases
        shape = lead + only.shape
        if type(value) is np.float64 and shape == (1,):
            return (np.array([value]),)  # such as the sum of an array
        if type(value) is np.ndarray and value.dtype is _FLOAT64 and value.shape == shape:
            return (value if value.flags.c_contiguous else value.copy(),)
    expected = [t.name for t in info.outputs]
    if len(expected) == 1 and not _holds_output(value, info.outputs[0], rows):
        values: Sequence[Any] = [value]
    elif isinstance(value, Mapping):
        if set(value) != set(expected):
            raise InvalidOutput(
                f"model {info.name!r} returned outputs {sorted(map(str, value))}, "
                f"declares {expected}"
            )
        values = [value[name] for name in expected]
    elif isinstance(value, list | tuple | np.ndarray) and len(value) == len(expected):
        values = list(value)
    else:
        raise InvalidOutput(
            f"model {info.name!r} returned {_described(value)}, "
            f"declares {len(expected)} outputs {expected}; return a dict by name "
            "or a sequence in that order"
        )
    return tuple(
        [
            checked_array(v, lead + t.shape, t.dtype, f"output {t.name!r} of model {info.name!r}")
            for v, t in zip(values, info.outputs, strict=True)
        ]
    )


def _described(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, list | tuple | np.ndarray) else ""
    return "None" if value is None else f"a {type(value).__name__}{size}"


def _holds_output(value: Any, tensor: TensorInfo, rows: int | None) -> bool:
    # `[array]` for a model with one output: a list that holds the array and is not the array, as
    # UM-Bridge models answer: for an output of size 1, [[3.0]] is such a list and [3.0] is the
    # array. An array of numpy counts as the list of its rows. A dict has its names.
    depth = max(len(tensor.shape) + (rows is not None), 1)
    if isinstance(value, np.ndarray):
        return value.ndim > depth and len(value) == 1
    if isinstance(value, list | tuple):
        return len(value) == 1 and np.ndim(value[0]) >= depth
    return isinstance(value, Mapping)


def checked_array(value: Any, shape: tuple[int, ...], dtype: str, what: str) -> Array:
    """Return `value` as an array of that shape and dtype; reshape a flat one of the right length.

    Raises InvalidOutput that names `what`, with expected and actual values.
    """
    if dtype == BYTES:
        try:
            array = bytes_array(value)
        except TypeError as error:
            raise InvalidOutput(f"{what} holds {error}, expected bytes or text") from None
    else:
        array = _numbers(value, dtype, what)
    if array.shape == shape:
        return np.asarray(array, order="C")
    fitting: tuple[int, ...] | None = shape
    if -1 in shape:
        fitting = varying_shape(array.shape, shape)
    elif array.ndim > 1 or array.size != math.prod(shape):
        fitting = None
    if fitting is None:
        raise InvalidOutput(f"{what} has shape {array.shape}, expected {shape}")
    return np.asarray(array, order="C").reshape(fitting)


def _numbers(value: Any, dtype: str, what: str) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidOutput(f"{what} is not an array: {error}") from None
    if array.dtype is _FLOAT64 and dtype == "float64":
        return array
    if not casts(array.dtype, numpy_dtype(dtype)):
        raise InvalidOutput(f"{what} {shown_kind(array)}, expected numbers of type {dtype}")
    if entry := unfit(array, numpy_dtype(dtype)):
        raise InvalidOutput(f"{what} holds {entry}, which its type {dtype} cannot hold")
    return array.astype(numpy_dtype(dtype), copy=False)
