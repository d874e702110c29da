"""Served models as functions of torch tensors, for autograd and torch.func."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind, ServedOp, is_floating
from farm.ops.rules import DerivativeRules


class TorchOp(ServedOp):
    """A served model as a function of torch tensors, made by `farm.ops.torch_op`.

    Results are on the device of the arguments.
    """

    def __call__(self, *inputs: Any) -> Any:
        """Return the output at the points. Raises FarmError."""
        evaluation = self.evaluation
        evaluation.check_count(len(inputs))
        tensors = [torch.as_tensor(x) for x in inputs]
        real = [is_floating(tensor) for tensor in evaluation.inputs]
        floats = [
            x
            for x, floating in zip(tensors, real, strict=True)
            if floating and x.dtype.is_floating_point
        ]
        like = torch.empty(
            (),
            dtype=_common(floats) if floats else torch.get_default_dtype(),
            device=(floats or tensors)[0].device,
        )
        shaped = []
        for x, floating, info in zip(tensors, real, evaluation.inputs, strict=True):
            if floating:
                x = x.to(like)
            if x.ndim == 0 and info.size == 1:
                x = x.reshape(info.shape)
            evaluation.leading(info.name, x.shape, info.shape)
            shaped.append(x)
        results = _apply(evaluation, like, OpQuery(OpQueryKind.VALUE), shaped)[
            : len(evaluation.results)
        ]
        return results[0] if evaluation.single else tuple(results)


def _common(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the type of the sum of the tensors."""
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _apply(
    evaluation: Evaluation, like: torch.Tensor, query: OpQuery, operands: Sequence[Any]
) -> list[Any]:
    """Ask a query whose operands may have different leading axes."""
    shapes = evaluation.operands(query)
    inputs = len(evaluation.inputs)
    tensors = [
        x if n < inputs else torch.as_tensor(x, dtype=like.dtype, device=like.device)
        for n, x in enumerate(operands)
    ]
    leads = [x.shape[: x.ndim - len(core)] for x, core in zip(tensors, shapes, strict=True)]
    lead = torch.broadcast_shapes(*leads)
    full = [x.expand((*lead, *core)) for x, core in zip(tensors, shapes, strict=True)]
    return _asked(evaluation, like, query, full)


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
        evaluation, like, query = ctx.given
        operands, answers = _parted(ctx)
        rules = DerivativeRules(evaluation, partial(_apply, evaluation, like))
        wanted = list(ctx.needs_input_grad[3:])
        if _is_zero(evaluation, query, operands):
            wanted[: len(evaluation.inputs)] = [False] * len(evaluation.inputs)
        found = rules.reverse(query, operands, answers, cotangents, wanted)
        return (None, None, None, *found)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        evaluation, like, query = ctx.given
        operands, answers = _parted(ctx)
        rules = DerivativeRules(evaluation, partial(_apply, evaluation, like))
        _, moved = rules.forward(query, operands, tangents[3:])
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


def _parted(ctx: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return operands and answers that a context has saved."""
    saved = list(ctx.saved_tensors)
    return saved[: ctx.operands], saved[ctx.operands :]
