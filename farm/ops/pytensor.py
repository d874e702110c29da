"""Served models as functions of PyTensor variables, as PyMC models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize

from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind, ServedOp
from farm.ops.rules import DerivativeRules, third_order


class PytensorOp(ServedOp):
    """A served model as a function of PyTensor variables, made by `farm.ops.pytensor_op`."""

    def _array(self, x: Any) -> Any:
        return pt.as_tensor_variable(x)

    def _type(self, floats: list[Any], arrays: list[Any]) -> str:
        types = [x.dtype for x in floats]
        return str(np.result_type(*types)) if types else pytensor.config.floatX

    def _shape(self, x: Any, core: Sequence[int]) -> tuple[int, ...]:
        """Return a variable's shape; sizes that are not known yet are taken to fit."""
        shape = tuple(-1 if n is None else n for n in x.type.shape)
        own = zip(shape[len(shape) - len(core) :], core, strict=len(shape) >= len(core))
        known = (n if size == -1 else size for size, n in own)
        return (*shape[: len(shape) - len(core)], *known)

    def _value(self, dtype: str, inputs: list[Any]) -> list[Any]:
        aligned = _aligned(self.evaluation, inputs)
        return _apply(self.evaluation, dtype, OpQuery(OpQueryKind.VALUE), aligned)


def _aligned(evaluation: Evaluation, inputs: list[Any]) -> list[Any]:
    """Return the inputs with the same leading axes."""
    cores = [tensor.shape for tensor in evaluation.inputs]
    axes = [x.type.ndim - len(core) for x, core in zip(inputs, cores, strict=True)]
    if len(inputs) == 1 or not any(axes):
        return inputs
    leads = [tuple(x.shape[axis] for axis in range(n)) for x, n in zip(inputs, axes, strict=True)]
    lead = pt.broadcast_shape(*leads, arrays_are_shapes=True)
    return [pt.broadcast_to(x, (*lead, *core)) for x, core in zip(inputs, cores, strict=True)]


def _apply(
    evaluation: Evaluation, dtype: str, query: OpQuery, operands: Sequence[Any]
) -> list[Any]:
    found: list[Any] = FarmQuery(evaluation, query, dtype)(*operands, return_list=True)
    return found


class FarmQuery(Op):  # type: ignore[misc]  # not read by mypy
    """One query as an op of a PyTensor graph. Its derivatives are queries again."""

    __props__ = ("evaluation", "query", "dtype")

    def __init__(self, evaluation: Evaluation, query: OpQuery, dtype: str) -> None:
        self.evaluation = evaluation
        self.query = query
        self.dtype = dtype

    def __str__(self) -> str:
        return f"{type(self).__name__}{{{self.evaluation.info.name}, {self.query.kind}}}"

    def make_node(self, *operands: Any) -> Any:
        """Return the node of this op with the operands' leading axes."""
        count = len(self.evaluation.inputs)
        variables = [
            pt.as_tensor_variable(x) if n < count else pt.as_tensor_variable(x).astype(self.dtype)
            for n, x in enumerate(operands)
        ]
        cores = self.evaluation.operands(self.query)
        pairs = zip(variables, cores, strict=True)
        leads = [x.type.shape[: x.type.ndim - len(core)] for x, core in pairs]
        lead = max(leads, key=len) if len(set(leads)) == 1 else (None,) * max(map(len, leads))
        outputs = [
            pt.tensor(dtype=self.dtype, shape=(*lead, *shape))
            for shape in self.evaluation.answers(self.query)
        ]
        return Apply(self, variables, outputs)

    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Any) -> None:
        """Ask the model. Raises FarmError."""
        arrays = [np.asarray(x) for x in inputs]
        full = self.evaluation.aligned(self.query, arrays, np)
        for storage, y in zip(output_storage, self.evaluation.run(self.query, full), strict=True):
            storage[0] = y.astype(self.dtype)

    def L_op(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Any]:
        """Return reverse-mode derivatives."""
        cotangents = [None if _disconnected(ct) else ct for ct in output_grads]
        differentiable = self._differentiable()
        wanted = [*differentiable]  # gradients that are not used, as of constants, are dropped
        query, answers = self.query, outputs
        if query.kind is OpQueryKind.VALUE and self.evaluation.scalar:
            count = len(self.evaluation.inputs)
            query = OpQuery(OpQueryKind.BOTH, wrt=tuple(i for i in range(count) if wanted[i]))
            answers = _apply(self.evaluation, self.dtype, query, inputs)
            cotangents = [*cotangents, *(None for _ in query.wrt)]
        third = len(self.evaluation.inputs) if query.kind is OpQueryKind.BEND else 0
        wanted[:third] = [False] * third
        found = self._rules().reverse(query, inputs, answers, cotangents, wanted)
        found[:third] = [THIRD_DERIVATIVE(x) for x in inputs[:third]]
        return [
            DisconnectedType()() if not each else x.zeros_like() if ct is None else ct
            for x, ct, each in zip(inputs, found, differentiable, strict=True)
        ]

    pullback = L_op

    def R_op(self, inputs: Any, eval_points: Any) -> list[Any]:
        """Return forward-mode derivatives."""
        tangents = [None if t is None or _disconnected(t) else t for t in eval_points]
        _, moved = self._rules().forward(self.query, inputs, tangents)
        return list(moved)

    def connection_pattern(self, node: Any) -> list[list[bool]]:
        """Return which operands have derivatives."""
        return [[each] * len(node.outputs) for each in self._differentiable()]

    def do_constant_folding(self, fgraph: Any, node: Any) -> bool:
        """Return False: models run when a function is called, not when it is compiled."""
        return False

    def _rules(self) -> DerivativeRules:
        return DerivativeRules(self.evaluation, partial(_apply, self.evaluation, self.dtype))

    def _differentiable(self) -> list[bool]:
        inputs = [i in self.evaluation.wrt for i in range(len(self.evaluation.inputs))]
        return inputs + [True] * (len(self.query.outs) + len(self.query.along))


class ThirdDerivative(Op):  # type: ignore[misc]  # not read by mypy
    """A derivative that no model has. It may be part of a graph, as long as nothing uses it."""

    __props__ = ()

    def make_node(self, x: Any) -> Any:
        """Return the node of a derivative with respect to `x`."""
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Any) -> None:
        """Raise UnsupportedFeature."""
        raise third_order()

    def do_constant_folding(self, fgraph: Any, node: Any) -> bool:
        """Return False: the error comes when a function is called."""
        return False


THIRD_DERIVATIVE = ThirdDerivative()


def _disconnected(variable: Any) -> bool:
    return isinstance(variable.type, DisconnectedType)


def ask_once(fgraph: Any, node: Any) -> Any:
    """Take a value from the node that also asks for its gradients; drop gradients without use."""
    op = node.op
    if op.query.kind is OpQueryKind.VALUE:
        for client, _ in fgraph.clients[node.inputs[0]]:
            other = client.op
            if (
                isinstance(other, FarmQuery)
                and other.query.kind is OpQueryKind.BOTH
                and (other.evaluation, other.dtype) == (op.evaluation, op.dtype)
                and client.inputs == node.inputs
            ):
                return client.outputs[:1]
    if op.query.kind in (OpQueryKind.BOTH, OpQueryKind.PULL):
        gradients = node.outputs[len(node.outputs) - len(op.query.wrt) :]
        used = [bool(fgraph.clients[g]) for g in gradients]
        if not all(used):
            return _without_unused(node, used)
    return None


register_canonicalize(node_rewriter([FarmQuery])(ask_once), name="farm_ask_once")


def _without_unused(node: Any, used: list[bool]) -> dict[Any, Any]:
    op = node.op
    kind, outs = op.query.kind, op.query.outs
    wrt = tuple(i for i, each in zip(op.query.wrt, used, strict=True) if each)
    if not wrt:
        kind = OpQueryKind.VALUE
    new = _apply(op.evaluation, op.dtype, OpQuery(kind, outs, wrt=wrt), node.inputs)
    first = len(node.outputs) - len(used)
    kept = [*node.outputs[:first]]
    kept += [g for g, each in zip(node.outputs[first:], used, strict=True) if each]
    return dict(zip(kept, new, strict=True))
