"""Served models as functions of torch tensors, for autograd and torch.func."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch

from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind, ServedOp
from farm.ops.rules import DerivativeRules


class TorchOp(ServedOp):
    """A served model as a function of torch tensors, made by `farm.ops.torch_op`.

    Results are on the device of the arguments.
    """

    def _array(self, x: Any) -> Any:
        return torch.as_tensor(x)

    def _type(self, floats: list[Any], arrays: list[Any]) -> torch.Tensor:
        """Return a tensor with the type and the device of the results."""
        types = [x.dtype for x in floats] or [torch.get_default_dtype()]
        dtype = reduce(torch.promote_types, types)
        return torch.empty((), dtype=dtype, device=(floats or arrays)[0].device)

    def _cast(self, x: Any, dtype: torch.Tensor) -> Any:
        return x.to(dtype)

    def _value(self, dtype: torch.Tensor, inputs: list[Any]) -> list[Any]:
        return _apply(self.evaluation, dtype, OpQuery(OpQueryKind.VALUE), inputs)


def _apply(
    evaluation: Evaluation, like: torch.Tensor, query: OpQuery, operands: Sequence[Any]
) -> list[Any]:
    """Ask a query whose operands may have different leading axes."""
    inputs = len(evaluation.inputs)
    tensors = [
        x if n < inputs else torch.as_tensor(x, dtype=like.dtype, device=like.device)
        for n, x in enumerate(operands)
    ]
    return _asked(evaluation, like, query, evaluation.aligned(query, tensors, torch))


def _asked(
    evaluation: Evaluation, like: torch.Tensor, query: OpQuery, operands: Sequence[Any]
) -> list[Any]:
    """Ask a query; a value with its gradients if autograd is going to need them."""
    if query.kind is OpQueryKind.VALUE and evaluation.scalar and torch.is_grad_enabled():
        wrt = tuple(i for i in evaluation.wrt if operands[i].requires_grad)
        if wrt:
            query = OpQuery(OpQueryKind.BOTH, wrt=wrt)
    return list(_Query.apply(evaluation, like, query, *operands))


class _Query(torch.autograd.Function):  # type: ignore[misc]  # not read by mypy
    """One query. Its derivatives are queries too, up to the highest order that the model has."""

    @staticmethod
    def forward(
        evaluation: Evaluation, like: torch.Tensor, query: OpQuery, *operands: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        arrays = [
            x.detach().cpu().to(torch.float64).numpy()
            if x.dtype.is_floating_point
            else x.detach().cpu().numpy()
            for x in operands
        ]
        found = evaluation.run(query, arrays)
        return tuple(torch.from_numpy(y).to(like) for y in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        evaluation, like, query, *operands = inputs
        ctx.given = evaluation, like, query
        ctx.operands = len(operands)
        ctx.save_for_backward(*operands, *output)
        ctx.save_for_forward(*operands, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        evaluation, _, query = ctx.given
        rules, operands, answers = _saved(ctx)
        wanted = list(ctx.needs_input_grad[3:])
        if _is_zero(evaluation, query, operands):
            wanted[: len(evaluation.inputs)] = [False] * len(evaluation.inputs)
        found = rules.reverse(query, operands, answers, cotangents, wanted)
        return (None, None, None, *found)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        rules, operands, answers = _saved(ctx)
        _, moved = rules.forward(ctx.given[2], operands, tangents[3:])
        return tuple(
            torch.zeros_like(y) if t is None else t for y, t in zip(answers, moved, strict=True)
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        evaluation: Evaluation,
        like: torch.Tensor,
        query: OpQuery,
        *operands: torch.Tensor,
    ) -> tuple[Any, Any]:
        """Add the batch axis to the points."""
        full = [
            x.expand((info.batch_size, *x.shape)) if axis is None else x.movedim(axis, 0)
            for x, axis in zip(operands, in_dims[3:], strict=True)
        ]
        found = _asked(evaluation, like, query, full)
        return tuple(found), (0,) * len(found)


def _is_zero(evaluation: Evaluation, query: OpQuery, operands: Sequence[torch.Tensor]) -> bool:
    """Return whether a derivative is zero at all points, and so are its own by the points.

    torch.autograd.functional differentiates along vectors of zeros to get a function that is linear
    in them, and has no use for the derivatives by the points, which models may not have.
    """
    first = len(evaluation.inputs)
    vectors = (operands[first : first + len(query.outs)], operands[first + len(query.outs) :])
    try:
        return any(some and not any(bool(v.any()) for v in some) for some in vectors)
    except RuntimeError:  # the numbers are not known within vmap
        return False


def _saved(ctx: Any) -> tuple[DerivativeRules, list[torch.Tensor], list[torch.Tensor]]:
    """Return the rules for a query, and the operands and answers that its context has saved."""
    evaluation, like, _ = ctx.given
    rules = DerivativeRules(evaluation, partial(_apply, evaluation, like))
    saved = list(ctx.saved_tensors)
    return rules, saved[: ctx.operands], saved[ctx.operands :]
