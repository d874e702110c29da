"""The values that calls are made of: Call, Result, and the descriptions of models and workers.

All are immutable and hold only numpy arrays and plain data. A Call never changes after it is made;
counters, deadlines and placement belong to the scheduler's Task.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from farm.errors import FarmError
from farm.sequences import SequenceLimits, SequenceStep, limits_of
from farm.units import check_labels, check_texts
from farm.wording import needs

T = TypeVar("T")

Array = NDArray[Any]

Buffer = bytes | bytearray | memoryview
"""Bytes of a message, owned or a view of a buffer."""

EMPTY_CONFIG = "{}"


class Operation(StrEnum):
    """The operation that a call requests from a model."""

    EVALUATE = "evaluate"
    GRADIENT = "gradient"
    APPLY_JACOBIAN = "apply_jacobian"
    APPLY_HESSIAN = "apply_hessian"
    VALUE_AND_GRADIENT = "value_and_gradient"
    """An evaluation and a gradient at the same point, in one call."""
    STREAM = "stream"
    """One evaluation that is answered in several parts, each sent as soon as it is ready."""
    DESCRIBE = "describe"
    """Return the model's tensors for a config; takes no inputs and needs no free worker."""
    COST = "cost"
    """Return the expected run time of an evaluation of each row, in any unit, as one array."""


DERIVATIVES = frozenset(
    {
        Operation.GRADIENT,
        Operation.APPLY_JACOBIAN,
        Operation.APPLY_HESSIAN,
        Operation.VALUE_AND_GRADIENT,
    }
)
"""Operations whose calls have a `Derivative`."""

BOTH = frozenset({Operation.EVALUATE, Operation.GRADIENT})
"""Operations that together answer value_and_gradient for a model that does not define it."""

TAKE_SENS = DERIVATIVES - {Operation.APPLY_JACOBIAN}
TAKE_VEC = frozenset({Operation.APPLY_JACOBIAN, Operation.APPLY_HESSIAN})

QUESTIONS = frozenset({Operation.DESCRIBE, Operation.COST})
"""Operations about a model that compute nothing with it: statistics do not count them."""

RUN_S = 0.02
"""Time limit of one run of rows, in seconds; other tasks wait that long for their turn."""

RUN_BYTES = 4 * 1024**2
"""Upper bound on the input bytes, and on the output bytes, of one run of rows: one message."""

VERSION_OF_FILE = "file:"
"""The start of a model's version that farm derived from the model's file."""

BYTES = "bytes"
BFLOAT16 = "bfloat16"


@lru_cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy type for the name of a tensor's dtype.

    Besides numpy's number types, "bytes" stands for arrays of `object` that hold `bytes`, such as
    text and images, and "bfloat16" for the type of the package ml_dtypes. Raises TypeError.
    """
    if name == BYTES:
        return np.dtype(object)
    if name == BFLOAT16:
        with needs("kserve", "bfloat16 needs the package ml_dtypes", TypeError):
            import ml_dtypes
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.kind not in "biufc":
        raise TypeError(f"expected a type of numbers, {BYTES!r} or {BFLOAT16!r}, got {name!r}")
    return dtype


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One named input or output of a model; `shape` is the shape of one evaluation, without batch.

    A size of -1 in the shape varies from call to call. dtype: see `numpy_dtype`.
    unit: of every entry, for displays and files, best as UDUNITS writes it: "Pa", "m s-2".
    description: what the tensor is, in one line. labels: names of an output's entries, such as the
    classes of a classifier. format: NCHW or NHWC, of images. None of these changes an answer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float64"
    unit: str = ""
    description: str = ""
    labels: tuple[str, ...] = ()
    format: str = ""

    def __post_init__(self) -> None:
        check_texts(self.name, self.unit, self.description, self.format)
        check_labels(self.name, self.labels)

    @property
    def varies(self) -> bool:
        """Whether a size in the shape is only known with each call."""
        return -1 in self.shape

    @property
    def size(self) -> int:
        """Number of entries in one evaluation; -1 if it varies."""
        return -1 if -1 in self.shape else math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the tensor as plain JSON data; unit, description and so on if it has them."""
        texts = "unit", "description", "labels", "format"
        stated = {key: text for key in texts if (text := getattr(self, key))}
        return {"name": self.name, "shape": self.shape, "dtype": self.dtype, **stated}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorInfo:
        """Return the tensor that `to_json` wrote. Raises KeyError, TypeError or ValueError."""
        return TensorInfo(
            _text(data["name"]),
            tuple(_at_least(-1, size) for size in data["shape"]),
            _dtype(data["dtype"]),
            _text(data.get("unit", "")),
            _text(data.get("description", "")),
            tuple(map(_text, data.get("labels", ()))),
            _text(data.get("format", "")),
        )


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The description of a model for one config.

    max_batch: rows that one evaluation accepts along a leading batch axis; 1 without such an axis.
    keeps_point: whether derivatives are cheaper on the worker that evaluated the same inputs last.
    repeatable: whether a call may run a second time, for example after its worker is lost.
    copies: whether a slow call may run a second time meanwhile, on another worker.
    version: changes whenever the model's answers may change; "": not known.
    sequences: the limits of a model that keeps a state for each sequence of requests.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operations: frozenset[Operation] = frozenset({Operation.EVALUATE})
    max_batch: int = 1
    repeatable: bool = True
    description: str = ""
    keeps_point: bool = False
    copies: bool = True
    version: str = ""
    sequences: SequenceLimits | None = None

    def offers(self, operation: Operation) -> bool:
        """Whether a farm answers this operation of the model.

        It answers value_and_gradient also for a model that only has evaluate and gradient.
        """
        if operation in self.operations:
            return True
        return operation is Operation.VALUE_AND_GRADIENT and self.operations >= BOTH

    def to_json(self) -> dict[str, Any]:
        """Return the description as plain JSON data, which `from_json` reads."""
        return {
            "name": self.name,
            "inputs": [tensor.to_json() for tensor in self.inputs],
            "outputs": [tensor.to_json() for tensor in self.outputs],
            "operations": sorted(self.operations),
            "max_batch": self.max_batch,
            "repeatable": self.repeatable,
            "description": self.description,
            "keeps_point": self.keeps_point,
            "copies": self.copies,
            "version": self.version,
            **({} if self.sequences is None else {"sequences": list(self.sequences)}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ModelInfo:
        """Return the description that `to_json` wrote. Raises KeyError, TypeError or ValueError."""
        known = frozenset(Operation)
        return ModelInfo(
            name=_text(data["name"]),
            inputs=tuple(map(TensorInfo.from_json, data["inputs"])),
            outputs=tuple(map(TensorInfo.from_json, data["outputs"])),
            # A later farm may know more operations, which this one cannot request.
            operations=frozenset(map(Operation, known & set(map(_text, data["operations"])))),
            max_batch=_at_least(1, data["max_batch"]),
            repeatable=bool(data["repeatable"]),
            description=_text(data.get("description", "")),
            keeps_point=bool(data.get("keeps_point", False)),
            copies=bool(data.get("copies", True)),
            version=_text(data.get("version", "")),
            sequences=limits_of(data.get("sequences")),
        )


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make a dataclass that type checkers hold to be frozen.

    At run time it is not: a frozen one takes six times as long to make, and every call makes six.
    """
    return dataclass(slots=True, eq=False)(cls)


@immutable
class Derivative:
    """The arguments of a derivative call, named as in UM-Bridge; indices count from 0.

    gradient:       J^T sens                                  sens: size of output out_wrt
    apply_jacobian: J vec                                     vec: size of input in_wrt
    apply_hessian:  d/dx_in_wrt2 [J_{out_wrt,in_wrt}^T sens] vec   vec: size of input in_wrt2
    value_and_gradient: the outputs, and J^T sens             sens: size of output out_wrt
    """

    out_wrt: int
    in_wrt: int
    in_wrt2: int = 0
    sens: Array | None = None
    vec: Array | None = None


LONGEST_CALL_ID = 128
"""Longest id of a call, in characters."""

_CALL_ID = re.compile(rf"[!-~]{{1,{LONGEST_CALL_ID}}}")


def checked_call_id(text: str) -> str:
    """Return the id if it has 1 to 128 visible ASCII characters; empty if not.

    Such a text can stand in a header and in a log without a change.
    """
    return text if _CALL_ID.fullmatch(text) else ""


class Origin(NamedTuple):
    """The request that a call came with, for logs.

    call_id: the name of the call in logs, from the client or made by the farm; client: who asked.
    trace_parent: the span of the request, as in the header `traceparent` of W3C Trace Context; ""
    if there is none. Workers do not get it.
    """

    call_id: str
    client: str = ""
    trace_parent: str = ""


@immutable
class Call:
    """One immutable request to a model.

    inputs: one array per model input, in the model's order. With `rows` None, input i has the
    tensor's shape or is flat with its size; with `rows` B it has a leading batch axis of length B.
    config: canonical JSON text, see `canonical_config`; text because text is immutable.
    origin: for logs; step: of a sequence, to a model that keeps its state. None for most calls.
    """

    model: str
    operation: Operation
    inputs: tuple[Array, ...] = ()
    config: str = EMPTY_CONFIG
    derivative: Derivative | None = None
    rows: int | None = None
    origin: Origin | None = None
    step: SequenceStep | None = None


@immutable
class Result:
    """One immutable answer: arrays in the order of the model's outputs, and the model's run time.

    For derivatives `outputs` holds one flat array, for value_and_gradient the model's outputs and
    then the flat gradient, for cost one number for each row; for describe it is empty and `info` is
    set.
    run_time_s: seconds inside the model; all calls of one batch carry the batch's time.
    queue_time_s: seconds in the farm's queue plus seconds at the worker before the run; a worker
    fills in only the latter.
    idle_s: seconds for which the worker was idle before this run; negative if unknown.
    batch_rows: rows in this run of the model, including those of other calls.
    more: this is one of several answers of a stream, and more may follow; the last has no outputs.
    failed: for a run of rows, the error of the row after the last one in outputs: see `rows_done`.
    copied: the call ran so long that a copy ran on another worker; this is the first answer.
    reused: the answer, or one of its rows, comes from an evaluation for another call; its run time,
    worker and time are that one's.
    row_times_s: for a run of rows, the run time of each row in outputs, or nothing.
    """

    outputs: tuple[Array, ...]
    run_time_s: float = 0.0
    info: ModelInfo | None = None
    worker: str = ""
    queue_time_s: float = 0.0
    idle_s: float = -1.0
    batch_rows: int = 1
    more: bool = False
    failed: FarmError | None = None
    copied: bool = False
    reused: bool = False
    row_times_s: tuple[float, ...] = ()

    def rows_done(self, asked: int) -> int:
        """Return how many of the `asked` rows have their outputs in this result.

        A worker evaluates the rows one after another if the model has no batches. It may answer
        before it reaches the last row, and always does when a row fails.
        """
        if asked == 1 or not self.outputs:
            return 0 if self.failed is not None else asked
        return len(self.outputs[0])


def halves(call: Call) -> tuple[Call, Call]:
    """Return the evaluation and the gradient that a call of value_and_gradient consists of."""
    evaluation = replace(call, operation=Operation.EVALUATE, derivative=None)
    return evaluation, replace(call, operation=Operation.GRADIENT)


def joined(value: Result, gradient: Result) -> Result:
    """Return the results of both `halves` as one: with the sum of the run times."""
    workers = {value.worker, gradient.worker}
    return Result(
        value.outputs + gradient.outputs,
        run_time_s=value.run_time_s + gradient.run_time_s,
        worker=value.worker if len(workers) == 1 else f"{len(workers)} workers",
        queue_time_s=max(value.queue_time_s, gradient.queue_time_s),
        copied=value.copied or gradient.copied,
    )


CallerName = tuple[str, str | None]
"""The names of a client and of a chain within it, as the caller gave them."""

LONGEST_NAME = 100
"""Longest name of a client or chain that counts, in characters; the rest is cut off."""

MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class Hints:
    """Scheduling information that accompanies a call; never part of the model's config.

    client: the name of the asking program, for fair sharing; priority: higher runs first;
    deadline_s: seconds after submission until which the answer is useful; start_within_s: seconds
    after submission within which the run must begin, which KServe's clients may specify.
    chain: the caller within the client, such as one chain of a sampler; a client's share grows with
    its callers. None: the call is a caller by itself; "": bulk, such as the points of a sweep, all
    of which count as one.
    shown_as: the names under which `farm status` counts the call; the farm sets it for calls that
    give a client or a chain, as the names above may stand for a host or for one request.
    patient: whether the caller waits for a first worker as long as it takes, as native clients do.
    call_id: the name of the call in logs; empty: it has none. trace_parent: see `Origin`; only a
    call with an id has one.
    end: the other end of the connection, by the owner of its socket or its address; "" if unknown.
    """

    client: str = ""
    priority: int = 0
    deadline_s: float | None = None
    start_within_s: float | None = None
    chain: str | None = None
    shown_as: CallerName | None = field(default=None, compare=False)
    patient: bool = field(default=False, compare=False)
    call_id: str = field(default="", compare=False)
    trace_parent: str = field(default="", compare=False)
    end: str = field(default="", compare=False)

    @property
    def is_limited(self) -> bool:
        """Whether the call has a time limit of its own: its end then says nothing about others."""
        return self.deadline_s is not None or self.start_within_s is not None

    def named(self, call: Call) -> Call:
        """Return the call with its origin, from the id and the client here."""
        return replace(call, origin=Origin(self.call_id, self.client, self.trace_parent))


NO_HINTS = Hints()


@lru_cache(maxsize=4096)
def named(client: str, end: str = "") -> Hints:
    """Return hints with this client name, from this end, and no others."""
    return Hints(client=client, end=end)


CancelCall = Callable[[], object]
"""Cancels a call; used when the client no longer waits for the answer."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The description that a worker sends when it joins.

    name: unique for one start of one process; slots: calls it runs at once;
    ends_at: Unix time at which its allocation ends, None if it has no end.
    """

    name: str
    models: tuple[ModelInfo, ...]
    slots: int = 1
    host: str = ""
    pid: int = 0
    device: str = ""
    ends_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the description as plain JSON data, which `from_json` reads."""
        return {
            "name": self.name,
            "models": [m.to_json() for m in self.models],
            "slots": self.slots,
            "host": self.host,
            "pid": self.pid,
            "device": self.device,
            "ends_at": self.ends_at,
            "labels": dict(self.labels),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WorkerInfo:
        """Return the description that `to_json` wrote. Raises KeyError, TypeError or ValueError."""
        ends_at = data.get("ends_at")
        return WorkerInfo(
            name=_text(data["name"]),
            models=tuple(ModelInfo.from_json(m) for m in data["models"]),
            slots=_at_least(1, data["slots"]),
            host=_text(data.get("host", "")),
            pid=_at_least(0, data.get("pid", 0)),
            device=_text(data.get("device", "")),
            ends_at=None if ends_at is None else float(ends_at),
            labels={_text(k): _text(v) for k, v in data.get("labels", {}).items()},
        )

    def shown(self) -> dict[str, Any]:
        """Return what a status shows of it beside its work."""
        labels = {name: self.labels.get(name, "") for name in ("job", "kind")}
        return {"host": self.host, "pid": self.pid, "device": self.device, **labels}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def _dtype(value: Any) -> str:
    if _text(value) not in (BYTES, BFLOAT16):
        numpy_dtype(value)
    return str(value)


def _at_least(least: int, value: Any) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"expected a whole number, {least} or more, got {value!r}")
    return value


def canonical_config(config: Any) -> str:
    """Return the canonical JSON text of a config: sorted keys, no spaces; equal for equal configs.

    None counts as the empty config. Raises TypeError or ValueError if it is not JSON data.
    """
    if not config:
        if config is None or isinstance(config, Mapping):
            return EMPTY_CONFIG
    elif isinstance(config, Mapping):
        return json.dumps(dict(config), sort_keys=True, separators=(",", ":"), default=_plain)
    raise TypeError(f"config must be a JSON object, got {type(config).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"config holds a {type(value).__name__}, which is not JSON data")
