"""A served model as ops see it: shapes, queries answered by numpy arrays, the base of all ops."""

from __future__ import annotations

import operator
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any, SupportsIndex

import numpy as np

from farm.call import BYTES, Array, Operation, TensorInfo, numpy_dtype
from farm.client import RemoteModel
from farm.errors import InvalidInput, UnsupportedFeature
from farm.ops.asking import Asking, Counts, ModelQuestion


class OpQueryKind(StrEnum):
    """The result of a query. J: the Jacobian of the results with respect to the inputs."""

    VALUE = "value"
    """The results."""
    BOTH = "both"
    """The result, which is one number, and its gradients."""
    PULL = "pull"
    """J^T c, for cotangents c of the results: reverse mode."""
    PUSH = "push"
    """J v, for tangents v of the inputs: forward mode."""
    BEND = "bend"
    """The derivative of J^T c along v: second derivatives."""


@dataclass(frozen=True, slots=True)
class OpQuery:
    """A question about points. Operands: the inputs, then cotangents, then tangents.

    outs: the results whose cotangents are given, by position among the op's results; along: the
    inputs whose tangents are given; wrt: the inputs whose gradients are returned.
    """

    kind: OpQueryKind
    outs: tuple[int, ...] = ()
    along: tuple[int, ...] = ()
    wrt: tuple[int, ...] = ()


NEEDED_FOR = {
    Operation.GRADIENT: "reverse mode (grad, vjp, backward) needs",
    Operation.APPLY_JACOBIAN: "forward mode (jvp, jacfwd) of this output needs",
    Operation.APPLY_HESSIAN: "second derivatives need",
}

NEEDS = {
    OpQueryKind.VALUE: (Operation.EVALUATE,),
    OpQueryKind.BOTH: (Operation.EVALUATE, Operation.GRADIENT),
    OpQueryKind.PULL: (Operation.GRADIENT,),
    OpQueryKind.PUSH: (Operation.APPLY_JACOBIAN,),
    OpQueryKind.BEND: (Operation.APPLY_HESSIAN,),
}


class Evaluation:
    """A served model as the op of a framework sees it: numpy arrays whose leading axes are points.

    results: shapes of the op's results, without leading axes; () for an output of one entry. wrt:
    positions of the inputs with derivatives. scalar: whether value and gradients are asked for
    together, because the only result is a number. Can be pickled and used after a fork.
    """

    def __init__(
        self,
        model: RemoteModel,
        config: Mapping[str, Any] | None = None,
        out: int | str | Sequence[int | str] = 0,
        wrt: int | str | Sequence[int | str] | None = None,
    ) -> None:
        """Raises FarmError if the model has no such tensors, or tensors that an op cannot have."""
        self._given = (model, config, out, wrt)
        info = self.info = model.describe(config)
        self.inputs = info.inputs
        for tensor in (*info.inputs, *info.outputs):
            _check_tensor(tensor, info.name)
        self.single = _is_one(out)
        self.outs = _positions(out, info.outputs, "output", info.name)
        real = [i for i, tensor in enumerate(info.inputs) if is_floating(tensor)]
        chosen = real if wrt is None else _positions(wrt, info.inputs, "input", info.name)
        for i in chosen:
            if i not in real:
                raise InvalidInput(
                    f"input {info.inputs[i].name!r} of model {info.name!r} is "
                    f"{info.inputs[i].dtype}; derivatives need floating-point numbers"
                )
        self.wrt = tuple(sorted(chosen))
        self.results = tuple(() if t.size == 1 else t.shape for t in self._outputs())
        both = {Operation.EVALUATE, Operation.GRADIENT}
        self.scalar = self.results == ((),) and info.operations >= both
        self._begin(model)

    def _outputs(self) -> list[TensorInfo]:
        return [self.info.outputs[i] for i in self.outs]

    def _begin(self, model: RemoteModel) -> None:
        """Start in this process, with no answers kept and nothing counted."""
        self._process = os.getpid()
        self._asking = Asking(model, self._given[1], self.info, self._outputs())

    @property
    def counts(self) -> Counts:
        """Return what has been sent so far."""
        return self._asking.counts

    def operands(self, query: OpQuery) -> list[tuple[int, ...]]:
        """Return the shapes of a query's operands, without leading axes."""
        return [
            *(tensor.shape for tensor in self.inputs),
            *(self.results[k] for k in query.outs),
            *(self.inputs[i].shape for i in query.along),
        ]

    def answers(self, query: OpQuery) -> list[tuple[int, ...]]:
        """Return the shapes of a query's answers, without leading axes."""
        gradients = [self.inputs[i].shape for i in query.wrt]
        if query.kind in (OpQueryKind.VALUE, OpQueryKind.PUSH):
            return list(self.results)
        return [(), *gradients] if query.kind is OpQueryKind.BOTH else gradients

    def check_count(self, count: int) -> None:
        """Raise InvalidInput unless `count` arguments are one for each input."""
        if count != len(self.inputs):
            names = ", ".join(repr(tensor.name) for tensor in self.inputs)
            raise InvalidInput(
                f"got {count} arguments, model {self.info.name!r} has {len(self.inputs)} inputs: "
                f"{names}"
            )

    def check_offered(self, query: OpQuery) -> None:
        """Raise UnsupportedFeature if the model cannot answer a query."""
        for operation in NEEDS[query.kind]:
            if operation not in self.info.operations:
                offered = ", ".join(sorted(self.info.operations))
                purpose = NEEDED_FOR.get(operation, "a value needs")
                raise UnsupportedFeature(
                    f"{purpose} {operation}, which model {self.info.name!r} does not offer; it "
                    f"offers {offered}"
                )

    def leading(self, name: str, shape: Sequence[int], core: Sequence[int]) -> tuple[int, ...]:
        """Return the leading axes of an argument. Raises InvalidInput if its shape does not fit."""
        lead, own = tuple(shape[: len(shape) - len(core)]), tuple(shape[len(shape) - len(core) :])
        if own != tuple(core):
            expected = ", ".join(["...", *map(str, core)])
            raise InvalidInput(
                f"input {name!r} has shape {tuple(shape)}, model {self.info.name!r} expects "
                f"({expected}), where ... are any axes of points"
            )
        return lead

    def aligned(self, query: OpQuery, operands: Sequence[Any], framework: Any) -> list[Any]:
        """Return the operands of a query with the same leading axes.

        framework: the module of arrays like them, with `broadcast_shapes` and `broadcast_to`.
        """
        cores = self.operands(query)
        leads = [x.shape[: x.ndim - len(core)] for x, core in zip(operands, cores, strict=True)]
        lead = framework.broadcast_shapes(*leads)
        return [
            framework.broadcast_to(x, (*lead, *core))
            for x, core in zip(operands, cores, strict=True)
        ]

    def run(self, query: OpQuery, operands: Sequence[Array]) -> list[Array]:
        """Answer a query at all points of the leading axes, which all operands share.

        Returns float64 arrays, whatever the operands' types. Raises FarmError.
        """
        if os.getpid() != self._process:
            # Locks may be held by threads that this child of a fork does not have, and its parent's
            # connection is not its own: unpickled, the model connects again.
            self._begin(pickle.loads(pickle.dumps(self._given[0])))
        self.check_offered(query)
        shapes = self.operands(query)
        lead = np.shape(operands[0])[: np.ndim(operands[0]) - len(shapes[0])]
        count = prod(lead)
        inputs = len(self.inputs)
        rows = [
            _rows(array, (count, *shape), self.inputs[i] if i < inputs else None)
            for i, (array, shape) in enumerate(zip(operands, shapes, strict=True))
        ]
        points, given = rows[:inputs], rows[inputs:]
        cotangents = dict(zip(query.outs, given, strict=False))
        tangents = dict(zip(query.along, given[len(query.outs) :], strict=True))
        found = self._found(query, points, cotangents, tangents, count)
        return [
            array.reshape((*lead, *shape))
            for array, shape in zip(found, self.answers(query), strict=True)
        ]

    def _found(
        self,
        query: OpQuery,
        points: list[Array],
        cotangents: dict[int, Array],
        tangents: dict[int, Array],
        count: int,
    ) -> list[Array]:
        """Return the answers by points."""
        if query.kind is OpQueryKind.VALUE:
            (values,) = self._asking.answers(points, [ModelQuestion(Operation.EVALUATE)], count)
            return [self._column(values, k, count) for k in range(len(self.outs))]
        if query.kind is OpQueryKind.BOTH:
            asked = [ModelQuestion(Operation.EVALUATE), *(self._gradient(0, i) for i in query.wrt)]
            values, *gradients = self._asking.answers(points, asked, count)
            return [
                self._column(values, 0, count),
                *(
                    np.array(g, np.float64).reshape(len(g), *self.inputs[i].shape)
                    for g, i in zip(gradients, query.wrt, strict=True)
                ),
            ]
        return self._derivatives(query, points, cotangents, tangents, count)

    def _column(self, values: list[Any], which: int, count: int) -> Array:
        column = np.empty((count, *self._outputs()[which].shape))
        for row, value in enumerate(values):
            column[row] = value[which]
        return column

    def _gradient(self, result: int, i: int, sens: Array | None = None) -> ModelQuestion:
        return ModelQuestion(Operation.GRADIENT, (self.outs[result], i), sens)

    def _derivatives(
        self,
        query: OpQuery,
        points: list[Array],
        cotangents: dict[int, Array],
        tangents: dict[int, Array],
        count: int,
    ) -> list[Array]:
        """Return derivatives, which are sums of the model's own over outputs and inputs."""
        terms: list[
            tuple[int, Array | None, ModelQuestion]
        ] = []  # position of the sum, factor, term
        if query.kind is OpQueryKind.PUSH:
            for k in range(len(self.outs)):
                for i, vec in tangents.items():
                    push = ModelQuestion(Operation.APPLY_JACOBIAN, (self.outs[k], i), vec=vec)
                    terms.append((k, None, push))
        else:
            for k, cotangent in cotangents.items():
                # The derivatives of a number are linear in its cotangent: asked for with 1.0, they
                # are those that were asked for before, whatever the cotangent is.
                factor, sens = (cotangent, None) if self.results[k] == () else (None, cotangent)
                for position, i in enumerate(query.wrt):
                    if query.kind is OpQueryKind.PULL:
                        terms.append((position, factor, self._gradient(k, i, sens)))
                        continue
                    for j, vec in tangents.items():
                        which = (self.outs[k], i, j)
                        question = ModelQuestion(Operation.APPLY_HESSIAN, which, sens, vec)
                        terms.append((position, factor, question))
        sums = [np.zeros((count, *shape)) for shape in self.answers(query)]
        asked = self._asking.answers(
            points, [term for *_, term in terms], count, [f for _, f, _ in terms]
        )
        for (position, factor, _), answers in zip(terms, asked, strict=True):
            for row, answer in enumerate(answers):
                if answer is not None:
                    part = np.asarray(answer).reshape(sums[position].shape[1:])
                    sums[position][row] += part if factor is None else factor[row] * part
        return sums

    def __reduce__(self) -> tuple[Any, ...]:
        return Evaluation, self._given


def is_floating(tensor: Any) -> bool:
    """Return whether a tensor or array holds floating-point numbers, which have derivatives."""
    return "float" in str(tensor.dtype)


def _check_tensor(tensor: TensorInfo, model: str) -> None:
    if tensor.dtype == BYTES or numpy_dtype(tensor.dtype).kind == "c":
        raise UnsupportedFeature(
            f"{tensor.name!r} of model {model!r} is {tensor.dtype}; ops are of real numbers"
        )
    if tensor.varies:
        raise UnsupportedFeature(
            f"{tensor.name!r} of model {model!r} has shape {tensor.shape}, which varies; ops are "
            "of fixed shapes: wrap the model in one that declares them"
        )


def _is_one(which: object) -> bool:
    """Return whether one output or input was given, and not several; numpy's integers are one."""
    return isinstance(which, str) or not isinstance(which, Iterable)


def _positions(
    which: int | str | Sequence[int | str], tensors: Sequence[TensorInfo], what: str, model: str
) -> tuple[int, ...]:
    """Return positions of tensors, given by name or position."""
    names = [tensor.name for tensor in tensors]
    found = []
    several: Sequence[Any] = [which] if _is_one(which) else which  # type: ignore[assignment]  # not narrowed
    for each in several:
        position = names.index(each) if each in names else each
        is_number = isinstance(position, SupportsIndex)
        if not is_number or not 0 <= operator.index(position) < len(names):
            raise InvalidInput(
                f"model {model!r} has no {what} {each!r}; it has {', '.join(map(repr, names))}"
            )
        found.append(operator.index(position))
    if not found or len(set(found)) < len(found):
        raise InvalidInput(f"expected one or more different {what}s of {model!r}, got {which!r}")
    return tuple(found)


def _rows(array: Array, shape: tuple[int, ...], tensor: TensorInfo | None) -> Array:
    """Return an operand as one row for each point; float64 except for inputs of whole numbers."""
    array = np.asarray(array)
    if tensor is None or is_floating(tensor):
        array = array.astype(np.float64)
    return np.ascontiguousarray(array).reshape(shape)


class ServedOp(ABC):
    """A served model as a function of a framework's arrays. Can be pickled.

    Arguments are the inputs in order, of shape (..., *shape of the input); leading axes are points
    and broadcast. Returns the output, of shape (..., *shape of the output), or (...) if it has one
    entry; a tuple if several outputs were asked for. Results have the type of the arguments.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    def __call__(self, *inputs: Any) -> Any:
        """Return the output at the points. Raises FarmError."""
        evaluation = self.evaluation
        evaluation.check_count(len(inputs))
        arrays = [self._array(x) for x in inputs]
        pairs = list(zip(arrays, evaluation.inputs, strict=True))
        floats = [x for x, tensor in pairs if is_floating(tensor) and is_floating(x)]
        dtype = self._type(floats, arrays)
        shaped = []
        for x, tensor in pairs:
            if is_floating(tensor):
                x = self._cast(x, dtype)
            if x.ndim == 0 and tensor.size == 1:
                x = x.reshape(tensor.shape)
            evaluation.leading(tensor.name, self._shape(x, tensor.shape), tensor.shape)
            shaped.append(x)
        results = self._value(dtype, shaped)[: len(evaluation.results)]
        return results[0] if evaluation.single else tuple(results)

    @abstractmethod
    def _array(self, x: Any) -> Any:
        """Return an argument as an array of the framework."""

    @abstractmethod
    def _type(self, floats: list[Any], arrays: list[Any]) -> Any:
        """Return the type of the results. floats: those of the arrays that have one for it."""

    def _cast(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def _shape(self, x: Any, core: Sequence[int]) -> tuple[int, ...]:
        return tuple(x.shape)

    @abstractmethod
    def _value(self, dtype: Any, inputs: list[Any]) -> list[Any]:
        """Return the results, of this type, and after them any gradients, of arguments that fit."""

    @property
    def counts(self) -> Counts:
        """Return the requests and calls that this process has sent, and the repeats it has not."""
        return self.evaluation.counts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.evaluation.info.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.evaluation,)
