"""Questions to a served model: counts of requests and calls, repeats, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from farm.call import Operation
from farm.client import Client
from farm.errors import InvalidOutput, ModelFailed
from farm.ops.asking import POINTS_PER_CHAIN, Asking, Counts, ModelQuestion, Repeats
from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind

X = np.arange(8.0).reshape(4, 2)
VALUE = OpQuery(OpQueryKind.VALUE)
BOTH = OpQuery(OpQueryKind.BOTH, wrt=(0,))


def test_points_are_one_bulk_request(client: Client, counted: Counter[str]) -> None:
    evaluation = Evaluation(client.model("density"))
    (y,) = evaluation.run(VALUE, [X])
    assert y.tolist() == [-0.5 * (x @ x) for x in X]
    assert evaluation.counts == Counts(requests=1, calls=4, repeats=0)
    assert counted == {"density evaluate": 4}


def test_value_and_gradient_are_one_call(client: Client, counted: Counter[str]) -> None:
    evaluation = Evaluation(client.model("density"))
    _, g = evaluation.run(BOTH, [X])
    assert g.tolist() == (-X).tolist()
    assert evaluation.counts == Counts(requests=1, calls=4, repeats=0)
    assert counted == {"density evaluate": 4, "density gradient": 4}


def test_nothing_is_asked_twice(client: Client, counted: Counter[str]) -> None:
    evaluation = Evaluation(client.model("density"))
    evaluation.run(VALUE, [X[:2]])
    assert counted == {"density evaluate": 2}
    evaluation.run(BOTH, [X])  # two points lack the gradient only, two lack both
    assert counted == {"density evaluate": 4, "density gradient": 4}
    assert evaluation.counts == Counts(requests=3, calls=6, repeats=2)
    y, g = evaluation.run(BOTH, [np.stack([X, X[::-1]])])
    assert evaluation.counts == Counts(requests=3, calls=6, repeats=18)
    assert (y[0] == y[1, ::-1]).all()
    assert (g[1] == -X[::-1]).all()


def test_equal_points_of_one_request_are_one_call(client: Client, counted: Counter[str]) -> None:
    evaluation = Evaluation(client.model("density"))
    (y,) = evaluation.run(VALUE, [np.repeat(X[1:2], 5, axis=0)])
    assert y.tolist() == [-6.5] * 5
    assert evaluation.counts == Counts(requests=1, calls=1, repeats=4)
    assert counted == {"density evaluate": 1}


def test_whole_numbers_of_other_types_are_other_points(client: Client) -> None:
    evaluation = Evaluation(client.model("plain"), out="total")
    for number in (np.int8(-1), np.uint8(255), np.int64(-1)):
        (total,) = evaluation.run(VALUE, [X[0], np.array([number])])
        assert total == float(number)
    assert evaluation.counts.repeats == 0


def test_what_an_answer_is_used_for_does_not_change_memory(client: Client) -> None:
    evaluation = Evaluation(client.model("density"))
    for _ in range(2):
        y, g = evaluation.run(BOTH, [X])
        assert y.tolist() == [-0.5 * (x @ x) for x in X]
        assert g.tolist() == (-X).tolist()
        y += 1.0
        g += 1.0


def test_a_config_is_part_of_the_op(client: Client) -> None:
    plain, raised = (Evaluation(client.model("density"), c) for c in (None, {"add": 1.0}))
    assert raised.run(VALUE, [X])[0].tolist() == (plain.run(VALUE, [X])[0] + 1.0).tolist()


def test_a_model_that_must_not_run_twice_is_asked_each_time(
    client: Client, counted: Counter[str]
) -> None:
    evaluation = Evaluation(client.model("dice"))
    for _ in range(2):
        assert evaluation.run(VALUE, [np.ones((3, 1))])[0].tolist() == [1.0] * 3
    assert counted == {"dice evaluate": 6}


def test_derivatives_along_zero_are_not_asked_for(client: Client, counted: Counter[str]) -> None:
    evaluation = Evaluation(client.model("waves"), out="y")
    sens = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    (g,) = evaluation.run(OpQuery(OpQueryKind.PULL, (0,), wrt=(0,)), [X[:2], np.ones((2, 1)), sens])
    assert g[0].any()
    assert not g[1].any()
    assert counted == {"waves gradient": 1}


def test_gradients_of_a_number_are_the_same_for_each_cotangent(
    client: Client, counted: Counter[str]
) -> None:
    evaluation = Evaluation(client.model("density"))
    for factor in (1.0, -2.0):
        pull = OpQuery(OpQueryKind.PULL, (0,), wrt=(0,))
        assert evaluation.run(pull, [X, np.full(4, factor)])[0].tolist() == (-factor * X).tolist()
    assert counted == {"density gradient": 4}


def test_an_error_names_its_point_and_keeps_the_other_answers(
    client: Client, counted: Counter[str]
) -> None:
    evaluation = Evaluation(client.model("density"))
    points = X.copy()
    points[2, 0] = 13.0
    with pytest.raises(ModelFailed, match="thirteen") as caught:
        evaluation.run(VALUE, [points])
    assert caught.value.__notes__ == ["at point 2"]
    assert "Traceback" in caught.value.detail
    before = evaluation.counts.calls
    evaluation.run(VALUE, [points[:2]])
    assert evaluation.counts.calls == before


class Recorded:
    """A model that records what is asked of it, and answers when its answers are taken."""

    def __init__(self, client: Client, model: str) -> None:
        self.model = client.model(model)
        self.events: list[str] = []

    def map(self, points: Any, config: Any = None, **options: Any) -> Iterator[Any]:
        names = [
            str(options["operation"]),
            *(f"{k}={options[k]}" for k in ("wrt",) if k in options),
        ]
        self.events.append(" ".join(["sent", *names]))
        found = self.model.map(points, config, **options)

        def taken() -> Iterator[Any]:
            self.events.append(" ".join(["taken", *names]))
            yield from found

        return taken()


def test_value_and_all_gradients_are_sent_before_any_is_awaited(client: Client) -> None:
    model = Recorded(client, "waves")
    info = model.model.info
    asking = Asking(model, None, info, info.outputs[1:])  # type: ignore[arg-type]  # has its `map`
    points = [X, np.ones((4, 1))]
    questions = [ModelQuestion(Operation.EVALUATE)]
    questions += [ModelQuestion(Operation.GRADIENT, (1, i)) for i in (0, 1)]
    asking.answers(points, questions, 4)
    assert model.events == [
        "sent value_and_gradient wrt=0",
        "sent gradient wrt=1",
        "taken value_and_gradient wrt=0",
        "taken gradient wrt=1",
    ]


def test_an_output_of_another_shape_is_an_error(client: Client) -> None:
    class Short:
        def map(self, points: Any, config: Any = None, **options: Any) -> Iterator[Any]:
            return iter([np.zeros(7)] * len(points))

    info = client.model("density").info
    asking = Asking(Short(), None, info, info.outputs)  # type: ignore[arg-type]  # has its `map`
    with pytest.raises(InvalidOutput, match=r"'log' has shape \(7,\).*declares \(1,\)"):
        asking.answers([X], [ModelQuestion(Operation.EVALUATE)], 4)


# The memory of an op: exact bytes, and bounds in points and bytes

QUESTION = ("evaluate", b"", b"")


def point(number: float) -> bytes:
    return np.array([number]).tobytes()


def test_answers_are_found_by_exact_bytes_and_question() -> None:
    repeats = Repeats()
    repeats.keep(point(0.0), QUESTION, np.ones(1))
    assert repeats.find(point(0.0), QUESTION) is not None
    assert repeats.find(point(-0.0), QUESTION) is None
    assert repeats.find(point(np.nextafter(0.0, 1.0)), QUESTION) is None
    assert repeats.find(point(0.0), ("gradient", 0, 0, b"", b"")) is None


def test_as_many_points_are_kept_as_chains_need() -> None:
    repeats = Repeats()
    for number in range(2 * POINTS_PER_CHAIN):
        repeats.keep(point(number), QUESTION, np.ones(1))
    assert len(repeats) == POINTS_PER_CHAIN
    repeats.expect(3)
    repeats.expect(2)
    for number in range(9 * POINTS_PER_CHAIN):
        repeats.keep(point(number), QUESTION, np.ones(1))
    assert len(repeats) == 3 * POINTS_PER_CHAIN


def test_the_point_that_was_not_used_for_longest_is_forgotten() -> None:
    repeats = Repeats()
    for number in range(POINTS_PER_CHAIN):
        repeats.keep(point(number), QUESTION, np.ones(1))
    assert repeats.find(point(0), QUESTION) is not None
    repeats.keep(point(-1), QUESTION, np.ones(1))
    assert repeats.find(point(0), QUESTION) is not None
    assert repeats.find(point(1), QUESTION) is None


def test_long_answers_are_bounded_in_bytes() -> None:
    repeats = Repeats(most_bytes=100_000)
    for number in range(100):
        repeats.keep(point(number), QUESTION, (np.ones(1000), np.ones(1000)))
    assert len(repeats) == 6, "of 16,000 bytes each"
    repeats.keep(point(99), ("gradient", np.ones(10_000).tobytes()), np.ones(1))
    assert len(repeats) < 6, "the vectors of a question count"
    repeats.keep(point(100), QUESTION, np.ones(20_000))
    assert len(repeats) == 0, "an answer longer than the bound is not kept"
    for number in range(5):
        repeats.keep(point(number), QUESTION, np.ones(1))
    assert len(repeats) == 5, "what was forgotten does not count any more"


def test_long_points_are_bounded_in_bytes() -> None:
    repeats = Repeats(most_bytes=100_000)
    for number in range(100):
        repeats.keep(np.full(1250, float(number)).tobytes(), QUESTION, np.ones(1))
    assert len(repeats) == 9, "of 10,400 bytes each"
