"""The rules of differentiation of queries, in the arithmetic of any framework.

Arrays here are those of a framework: only their operators, indexing, `sum` and `reshape` are used.
`apply` asks a query: it takes operands, which it broadcasts over their leading axes, and returns a
list of arrays. x: the inputs, c: the cotangents and v: the tangents among a query's operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from farm.errors import UnsupportedFeature
from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind

Some = dict[int, Any]
"""Arrays by position of their input or result; those that are zero are missing."""

ONE = np.ones(())
"""The cotangent of a result that is a number."""


class DerivativeRules:
    """Forward and reverse derivatives of the queries of one evaluation."""

    def __init__(
        self, evaluation: Evaluation, apply: Callable[[OpQuery, Sequence[Any]], list[Any]]
    ) -> None:
        self._evaluation = evaluation
        self._apply = apply
        self._input_axes = [len(tensor.shape) for tensor in evaluation.inputs]

    def split(
        self, query: OpQuery, operands: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return inputs, cotangents and tangents among the operands of a query."""
        inputs, outs = len(self._input_axes), len(query.outs)
        items = list(operands)
        return items[:inputs], items[inputs : inputs + outs], items[inputs + outs :]

    def forward(
        self, query: OpQuery, operands: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return a query's answers and their tangents, None for zero.

        tangents: those of the operands, None for zero. Value and gradient are asked for together.
        """
        x, c, v = self.split(query, operands)
        tx_all, tc, tv = self.split(query, tangents)
        tx = _some((i, tx_all[i]) for i in self._evaluation.wrt)
        if query.kind is OpQueryKind.VALUE and self._evaluation.scalar and tx:
            return self._forward_both(OpQuery(OpQueryKind.BOTH), x, tx)
        if query.kind is OpQueryKind.BOTH and tx:
            return self._forward_both(query, x, tx)
        answers = self._apply(query, operands)
        if query.kind is OpQueryKind.VALUE:
            return answers, self._push(x, tx) if tx else [None] * len(answers)
        sums = [
            self._linear(query, x, c, v, tc, tv),
            self._moved(query, x, c, v, tx) if tx else [None] * len(answers),
        ]
        return answers, [_total(terms) for terms in zip(*sums, strict=True)]

    def _forward_both(self, query: OpQuery, x: list[Any], tx: Some) -> tuple[list[Any], list[Any]]:
        wrt = tuple(dict.fromkeys((*query.wrt, *tx)))
        value, *found = self._apply(OpQuery(OpQueryKind.BOTH, wrt=wrt), x)
        gradients = dict(zip(wrt, found, strict=True))
        moved = _total([self._dot(gradients[i], t, i) for i, t in tx.items()])
        bent = self._bend(x, {0: ONE}, tx, query.wrt) if query.wrt else []
        return [value, *(gradients[i] for i in query.wrt)], [moved, *bent]

    def _linear(
        self, query: OpQuery, x: list[Any], c: list[Any], v: list[Any], tc: list[Any], tv: list[Any]
    ) -> list[Any]:
        """Return the tangents that come from those of cotangents and tangents."""
        live_c = _some(zip(query.outs, tc, strict=True))
        live_v = _some(zip(query.along, tv, strict=True))
        if query.kind is OpQueryKind.PULL and live_c:
            return self._pull(x, live_c, query.wrt)
        if query.kind is OpQueryKind.PUSH and live_v:
            return self._push(x, live_v)
        if query.kind is OpQueryKind.BEND and (live_c or live_v):
            terms = []
            if live_c:
                along = dict(zip(query.along, v, strict=True))
                terms.append(self._bend(x, live_c, along, query.wrt))
            if live_v:
                terms.append(
                    self._bend(x, dict(zip(query.outs, c, strict=True)), live_v, query.wrt)
                )
            return [_total(each) for each in zip(*terms, strict=True)]
        count = len(self._evaluation.answers(query))
        return [None] * count

    def _moved(
        self, query: OpQuery, x: list[Any], c: list[Any], v: list[Any], tx: Some
    ) -> list[Any]:
        """Return the tangents that come from those of the inputs: second derivatives."""
        if query.kind is OpQueryKind.PULL:
            return self._bend(x, dict(zip(query.outs, c, strict=True)), tx, query.wrt)
        if query.kind is OpQueryKind.PUSH:
            return self._curvature(x, dict(zip(query.along, v, strict=True)), tx)
        raise third_order()

    def reverse(
        self,
        query: OpQuery,
        operands: Sequence[Any],
        answers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool],
    ) -> list[Any]:
        """Return the cotangents of the operands, None where they are zero or not wanted.

        cotangents: those of the answers, None for zero.
        """
        x, c, v = self.split(query, operands)
        want_x, want_c, want_v = self.split(query, wanted)
        need = tuple(i for i in self._evaluation.wrt if want_x[i])
        gx: Some = {}
        gc: Some = {}
        gv: Some = {}
        if query.kind in (OpQueryKind.VALUE, OpQueryKind.PUSH):
            live = _some(enumerate(cotangents))
        else:
            first = 1 if query.kind is OpQueryKind.BOTH else 0  # behind the value
            live = _some(zip(query.wrt, cotangents[first:], strict=True))
        if query.kind is OpQueryKind.BOTH:
            gx = self._reverse_both(query, x, answers, cotangents[0], live, need)
        elif not live:
            pass
        elif query.kind is OpQueryKind.VALUE:
            gx = dict(zip(need, self._pull(x, live, need), strict=True)) if need else {}
        elif query.kind is OpQueryKind.PULL:
            if any(want_c):
                gc = dict(enumerate(self._push(x, live)))
            if need:
                along = dict(zip(query.outs, c, strict=True))
                gx = dict(zip(need, self._bend(x, along, live, need), strict=True))
        elif query.kind is OpQueryKind.PUSH:
            if any(want_v):
                gv = dict(zip(query.along, self._pull(x, live, query.along), strict=True))
            if need:
                tangents = dict(zip(query.along, v, strict=True))
                gx = dict(zip(need, self._bend(x, live, tangents, need), strict=True))
        else:
            if need:
                raise third_order()
            if any(want_v):
                sens = dict(zip(query.outs, c, strict=True))
                gv = dict(zip(query.along, self._bend(x, sens, live, query.along), strict=True))
            if any(want_c):
                tangents = dict(zip(query.along, v, strict=True))
                gc = dict(enumerate(self._curvature(x, live, tangents)))
        return [
            *(gx.get(i) for i in range(len(x))),
            *(gc.get(k) if want else None for k, want in zip(query.outs, want_c, strict=True)),
            *(gv.get(i) if want else None for i, want in zip(query.along, want_v, strict=True)),
        ]

    def _reverse_both(
        self,
        query: OpQuery,
        x: list[Any],
        answers: Sequence[Any],
        cotangent: Any,
        live: Some,
        need: tuple[int, ...],
    ) -> Some:
        found: dict[int, list[Any]] = {i: [] for i in need}
        if cotangent is not None:
            gradients = dict(zip(query.wrt, answers[1:], strict=True))
            for i in need:
                if i in gradients:
                    axes = (None,) * self._input_axes[i]
                    found[i].append(cotangent[(..., *axes)] * gradients[i])
            others = tuple(i for i in need if i not in gradients)
            if others:
                for i, g in zip(others, self._pull(x, {0: cotangent}, others), strict=True):
                    found[i].append(g)
        if live and need:
            for i, g in zip(need, self._bend(x, {0: ONE}, live, need), strict=True):
                found[i].append(g)
        return {i: _total(terms) for i, terms in found.items()}

    def _pull(self, x: list[Any], c: Some, wrt: tuple[int, ...]) -> list[Any]:
        return self._apply(OpQuery(OpQueryKind.PULL, tuple(c), wrt=wrt), [*x, *c.values()])

    def _push(self, x: list[Any], v: Some) -> list[Any]:
        return self._apply(OpQuery(OpQueryKind.PUSH, along=tuple(v)), [*x, *v.values()])

    def _bend(self, x: list[Any], c: Some, v: Some, wrt: tuple[int, ...]) -> list[Any]:
        query = OpQuery(OpQueryKind.BEND, tuple(c), tuple(v), wrt)
        return self._apply(query, [*x, *c.values(), *v.values()])

    def _curvature(self, x: list[Any], v: Some, w: Some) -> list[Any]:
        """Return v^T H w for each entry of each result, where H is the entry's Hessian.

        The entries are one more axis of points.
        """
        more_x = [self._widened(each, i) for i, each in enumerate(x)]
        more_v = {i: self._widened(each, i) for i, each in v.items()}
        more_w = {i: self._widened(each, i) for i, each in w.items()}
        found = []
        for k, shape in enumerate(self._evaluation.results):
            size = int(np.prod(shape))
            units = np.eye(size).reshape(size, *shape)
            bent = self._bend(more_x, {k: units}, more_w, tuple(v))
            parts = zip(v, bent, strict=True)
            curved = _total([self._dot(b, more_v[i], i) for i, b in parts])
            found.append(curved.reshape((*curved.shape[:-1], *shape)))
        return found

    def _widened(self, array: Any, i: int) -> Any:
        """Return an array with one more axis of points, the last of them."""
        return array[(..., None, *(slice(None),) * self._input_axes[i])]

    def _dot(self, left: Any, right: Any, i: int) -> Any:
        """Return the scalar product over the axes of input `i`."""
        product = left * right
        for _ in range(self._input_axes[i]):
            product = product.sum(-1)
        return product


def third_order() -> UnsupportedFeature:
    """Return the error for derivatives that no model has."""
    return UnsupportedFeature(
        "third derivatives of a served model: models offer derivatives up to apply_hessian, which "
        "is of second order"
    )


def _some(arrays: Iterable[tuple[int, Any]]) -> Some:
    """Return the arrays that are not zero."""
    return {position: array for position, array in arrays if array is not None}


def _total(terms: Sequence[Any]) -> Any:
    """Return the sum of the terms that are not None; None if all are."""
    total = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total
