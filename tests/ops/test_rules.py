"""The rules of differentiation, in numpy: against differences of what they differentiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from farm.client import Client
from farm.errors import UnsupportedFeature
from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind
from farm.ops.rules import DerivativeRules

RNG = np.random.default_rng(5)
STEP = 1e-6
VALUE, BOTH, PULL, PUSH, BEND = OpQueryKind

QUERIES = [
    ("y", OpQuery(VALUE)),
    ("sum", OpQuery(VALUE)),
    ("sum", OpQuery(BOTH, wrt=(0, 1))),
    ("sum", OpQuery(BOTH, wrt=(1,))),
    ("y", OpQuery(PULL, outs=(0,), wrt=(0, 1))),
    ("y", OpQuery(PUSH, along=(0, 1))),
    (["y", "sum"], OpQuery(PULL, outs=(0, 1), wrt=(0,))),
    (["y", "sum"], OpQuery(PUSH, along=(1,))),
]


class Asked:
    """An evaluation with the rules applied to numpy arrays, at two points."""

    def __init__(self, client: Client, out: Any, query: OpQuery) -> None:
        self.evaluation = Evaluation(client.model("waves"), out=out)
        self.query = query
        self.rules = DerivativeRules(self.evaluation, self.apply)
        shapes = self.evaluation.operands(query)
        self.operands = [RNG.standard_normal((2, *shape)) for shape in shapes]
        self.directions = [RNG.standard_normal((2, *shape)) for shape in shapes]

    def apply(self, query: OpQuery, operands: Sequence[Any]) -> list[Any]:
        cores = self.evaluation.operands(query)
        pairs = list(zip(operands, cores, strict=True))
        lead = np.broadcast_shapes(*(np.shape(x)[: np.ndim(x) - len(core)] for x, core in pairs))
        return self.evaluation.run(query, [np.broadcast_to(x, (*lead, *core)) for x, core in pairs])

    def differences(self, moved: Sequence[bool]) -> list[Any]:
        """Return the derivatives of the answers along the directions of the moved operands."""

        def at(step: float) -> list[Any]:
            triples = zip(self.operands, self.directions, moved, strict=True)
            return self.apply(self.query, [x + step * d * m for x, d, m in triples])

        return [(b - a) / (2.0 * STEP) for a, b in zip(at(-STEP), at(STEP), strict=True)]


@pytest.mark.parametrize(("out", "query"), QUERIES, ids=str)
def test_forward_is_the_derivative_along_a_direction(
    client: Client, out: Any, query: OpQuery
) -> None:
    asked = Asked(client, out, query)
    count = len(asked.operands)
    for moved in [[True] * count, *([n == i for n in range(count)] for i in range(count))]:
        given = [d if m else None for d, m in zip(asked.directions, moved, strict=True)]
        answers, found = asked.rules.forward(query, asked.operands, given)
        for a, b in zip(answers, asked.apply(query, asked.operands), strict=True):
            assert np.array_equal(a, b)
        for a, b in zip(found, asked.differences(moved), strict=True):
            np.testing.assert_allclose(0.0 if a is None else a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("out", "query"), QUERIES, ids=str)
def test_reverse_is_the_transpose_of_forward(client: Client, out: Any, query: OpQuery) -> None:
    asked = Asked(client, out, query)
    answers = asked.apply(query, asked.operands)
    cotangents = [RNG.standard_normal(y.shape) for y in answers]
    wanted = [True] * len(asked.operands)
    found = asked.rules.reverse(query, asked.operands, answers, cotangents, wanted)
    moved = asked.differences(wanted)
    left = sum((c * m).sum() for c, m in zip(cotangents, moved, strict=True))
    pairs = zip(found, asked.directions, strict=True)
    assert sum((g * d).sum() for g, d in pairs) == pytest.approx(left, rel=1e-5)


def test_only_what_is_wanted_is_asked_for(client: Client) -> None:
    asked = Asked(client, "sum", OpQuery(VALUE))
    sums = [np.ones(2)]
    before = asked.evaluation.counts.calls
    found = asked.rules.reverse(asked.query, asked.operands, (), sums, [False, True])
    assert found[0] is None
    assert asked.evaluation.counts.calls == before + 2
    nothing = asked.rules.reverse(asked.query, asked.operands, (), [None], [True, True])
    assert nothing == [None, None]


def test_second_derivatives_are_linear_in_their_vectors(client: Client) -> None:
    asked = Asked(client, "y", OpQuery(BEND, outs=(0,), along=(0, 1), wrt=(0, 1)))
    moved = [False, False, True, True, True]
    given = [d if m else None for d, m in zip(asked.directions, moved, strict=True)]
    _, found = asked.rules.forward(asked.query, asked.operands, given)
    for a, b in zip(found, asked.differences(moved), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    cotangents = [RNG.standard_normal(y.shape) for y in found]
    back = asked.rules.reverse(asked.query, asked.operands, (), cotangents, moved)
    left = sum((c * m).sum() for c, m in zip(cotangents, found, strict=True))
    pairs = zip(back[2:], asked.directions[2:], strict=True)
    assert sum((g * d).sum() for g, d in pairs) == pytest.approx(left)
    with pytest.raises(UnsupportedFeature, match="third derivatives"):
        asked.rules.forward(asked.query, asked.operands, asked.directions)
    with pytest.raises(UnsupportedFeature, match="third derivatives"):
        asked.rules.reverse(asked.query, asked.operands, (), cotangents, [True] * 5)
