"""The rows of one call: splitting them and joining their results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.dispatcher.partition import WholeCall, check_answer, some_rows, stacked
from farm.errors import FarmError, InvalidOutput, ModelFailed, Overloaded

Outcomes = list[Result | FarmError]


def rows(count: int) -> Call:
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    return Call("m", Operation.EVALUATE, (x, -x[:, :1]), '{"a":1}', rows=count)


def whole(count: int, info: ModelInfo | None = None) -> tuple[WholeCall, Outcomes]:
    outcomes: Outcomes = []
    return WholeCall(rows(count), info, outcomes.append), outcomes


def test_a_part_is_a_view_of_some_rows() -> None:
    of, _ = whole(10)
    part = of.part(7, 2)
    assert (part.model, part.config, part.rows) == ("m", '{"a":1}', 2)
    assert part.operation is Operation.EVALUATE
    assert part.inputs[0].tolist() == [[14, 15], [16, 17]]
    assert part.inputs[0].base is not None
    assert of.part(9, 5).rows == 1
    assert (len(of), of.row_bytes) == (10, 12)


def test_parts_of_a_model_with_batches_have_the_declared_dtypes() -> None:
    inputs = TensorInfo("x", (2,)), TensorInfo("y", (1,))
    of, _ = whole(4, ModelInfo("m", inputs, (), max_batch=2))
    assert {array.dtype for array in of.part(0, 2).inputs} == {np.dtype(np.float64)}
    of, _ = whole(4, ModelInfo("m", inputs, ()))
    assert {array.dtype for array in of.part(0, 2).inputs} == {np.dtype(np.float32)}


def answer(k: int, worker: str = "w") -> Result:
    outputs = (np.full((2, 3), float(k)), np.array([[b"a"], [b"b"]], object))
    return Result(outputs, 1.0 + k, worker=worker, queue_time_s=float(k), batch_rows=2 + k)


@pytest.mark.parametrize(("workers", "shown"), [("www", "w"), ("aba", "2 workers")])
def test_results_are_written_to_the_place_of_their_rows(workers: str, shown: str) -> None:
    of, outcomes = whole(6)
    for k in (2, 0, 1):
        of.done(2 * k, 2 * k + 2, answer(k, workers[k]))
    assert outcomes == []
    of.finished()
    (result,) = outcomes
    assert isinstance(result, Result)
    assert result.outputs[0][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert result.outputs[1].tolist() == [[b"a"], [b"b"]] * 3
    assert (result.run_time_s, result.queue_time_s, result.batch_rows) == (6.0, 2.0, 4)
    assert result.worker == shown


@pytest.mark.parametrize("parts", [(), (1,), (0, 2)])
@pytest.mark.parametrize("mark", ["copied", "reused"])
def test_a_call_of_which_a_part_was_copied_or_reused_says_so(
    mark: str, parts: tuple[int, ...]
) -> None:
    of, outcomes = whole(6)
    for k in range(3):
        of.done(2 * k, 2 * k + 2, replace(answer(k), **{mark: k in parts}))  # type: ignore[arg-type]  # a field by its name
    of.finished()
    (result,) = outcomes
    assert isinstance(result, Result)
    marks = {"copied": result.copied, "reused": result.reused}
    assert [name for name, is_set in marks.items() if is_set] == ([mark] if parts else [])


@pytest.mark.parametrize(
    ("first", "end", "error", "said"),
    [
        (2, 3, ModelFailed("diverged", detail="line 3"), "row 2: diverged"),
        (3, 7, InvalidOutput("short"), "rows 3 to 6: short"),
        (3, 7, Overloaded("later"), "later"),
    ],
)
def test_an_error_names_its_rows_where_they_are_what_is_wrong(
    first: int, end: int, error: FarmError, said: str
) -> None:
    of, outcomes = whole(9)
    assert of.failed(first, end, error) is False, "the first error is the call's"
    (told,) = outcomes
    assert isinstance(told, FarmError)
    assert (type(told), str(told), told.detail) == (type(error), said, error.detail)


def test_outputs_of_different_shapes_are_no_array() -> None:
    of, _ = whole(2)
    of.done(0, 1, Result((np.zeros((1, 1)), np.zeros((1, 3)))))
    with pytest.raises(InvalidOutput, match=r"output 1 has rows of the shapes \[2\] and \[3\]"):
        of.done(1, 2, Result((np.zeros((1, 1)), np.zeros((1, 2)))))


def test_an_answer_too_large_for_any_machine_is_an_error() -> None:
    huge = np.broadcast_to(0.0, (1, 2**58))
    of, _ = whole(2**3)
    with pytest.raises(InvalidOutput, match=r"8 rows of .* bytes"):
        of.done(0, 1, Result((huge,)))


# Rows of calls and results


CALL = Call("m", Operation.EVALUATE, (np.arange(6.0).reshape(3, 2), np.arange(3)), rows=3)


def test_some_rows_of_a_call() -> None:
    for rows in (slice(1, None), [1, 2]):
        some = some_rows(CALL, rows)
        assert some.rows == 2
        assert [array.tolist() for array in some.inputs] == [[[2.0, 3.0], [4.0, 5.0]], [1, 2]]


def test_results_of_rows() -> None:
    first, second = Result((np.ones(2), np.array(5.0)), 0.25), Result((np.zeros(2), np.array(6.0)))
    both = stacked([first, second])
    assert [array.tolist() for array in both.outputs] == [[[1, 1], [0, 0]], [5.0, 6.0]]
    assert both.run_time_s == 0.25


def test_an_answer_has_a_row_for_each_that_was_asked() -> None:
    check_answer(Result((np.ones((3, 2)), np.ones(3))), 3)
    for wrong in (np.ones((2, 2)), np.array(5.0)):
        with pytest.raises(InvalidOutput, match="the worker's answer to 3 rows has the shape"):
            check_answer(Result((np.ones((3, 2)), wrong)), 3)
