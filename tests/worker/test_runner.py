"""Runner: checks, merging, splitting, named errors, and isolation from the models."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import RUN_BYTES, RUN_S, Call, Derivative, Operation, Result, TensorInfo
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    ModelNotFound,
    Unavailable,
    UnsupportedFeature,
)
from farm.model import Config, Inputs, Model, info_of
from farm.sequences import Sequence, SequenceStep
from farm.worker import runner as run
from farm.worker.runner import NULL_HOST, Host, Outcome, RowRun, Runner, timed
from tests.support.coroutines import LIMIT_S


class Square(Model):
    inputs = {"x": 3}
    outputs = {"y": 3}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"] ** 2


class Batched(Model):
    """Row sums and squares; remembers the rows of each evaluation; -1 raises, -2 loses a row."""

    inputs = {"x": 2}
    outputs = {"total": TensorInfo("total", ()), "squares": 2}
    max_batch = 4

    def __init__(self) -> None:
        self.seen: list[int] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        x = inputs["x"]
        self.seen.append(len(x))
        if (x == -1).any():
            raise ValueError("minus one")
        x = x[(x != -2).all(axis=1)]
        return x.sum(axis=1), x**2


class Anything(Model):
    """Returns or raises the value it was made with."""

    inputs = {"x": 1}
    outputs = {"y": 2}

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def evaluate(model: str, *inputs: Any, rows: int | None = None, config: str = "{}") -> Call:
    arrays = tuple(np.asarray(x, dtype=float) for x in inputs)
    return Call(model, Operation.EVALUATE, arrays, config=config, rows=rows)


def result(outcome: Outcome) -> Result:
    if isinstance(outcome, FarmError):
        raise outcome
    return outcome


def answer_of(answer: Any) -> Outcome:
    return Runner({"m": Anything(answer)}).execute([evaluate("m", [0.0])])[0]


def test_one_call() -> None:
    began = time.perf_counter()
    (outcome,) = Runner({"square": Square()}).execute([evaluate("square", [1, 2, 3])])
    np.testing.assert_array_equal(result(outcome).outputs[0], [1, 4, 9])
    assert 0 < result(outcome).run_time_s < time.perf_counter() - began


def test_outcomes_are_in_the_order_of_the_calls() -> None:
    runner = Runner({"square": Square(), "batched": Batched()})
    calls = [
        evaluate("batched", [1, 2]),
        evaluate("square", [1, 2, 3]),
        evaluate("nobody", [1]),
        evaluate("batched", [3, 4]),
        evaluate("square", [1, 2]),
        Call("square", Operation.DESCRIBE),
    ]
    first, square, nobody, second, wrong, described = runner.execute(calls)
    assert [float(result(o).outputs[0]) for o in (first, second)] == [3, 7]
    assert float(result(square).outputs[0][2]) == 9
    assert isinstance(nobody, ModelNotFound)
    assert "['batched', 'square']" in nobody.message
    assert isinstance(wrong, InvalidInput)
    info = result(described).info
    assert info is not None
    assert info.name == "square"


def test_run_time_is_that_of_the_model_alone() -> None:
    describing_s = 0.1

    class Slow(Square):
        def describe(self, config: Config) -> Any:
            time.sleep(describing_s)
            return super().describe(config)

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            time.sleep(0.02)
            return super().evaluate(inputs, config)

    began = time.perf_counter()
    (outcome,) = Runner({"slow": Slow()}).execute([evaluate("slow", [1, 2, 3])])
    took_s = time.perf_counter() - began
    assert 0.02 <= result(outcome).run_time_s <= took_s - describing_s


# --- merging ----------------------------------------------------------------------------------


def test_calls_of_a_batchable_model_share_model_calls_of_at_most_max_batch_rows() -> None:
    model = Batched()
    calls = [evaluate("b", [i, i]) for i in range(10)]
    outcomes = Runner({"b": model}).execute(calls)
    assert model.seen == [4, 4, 2]
    for i, outcome in enumerate(outcomes):
        total, squares = result(outcome).outputs
        assert (total.shape, squares.shape) == ((), (2,))
        assert float(total) == 2 * i
        np.testing.assert_array_equal(squares, [i**2, i**2])


def test_rows_count_towards_the_batch_and_keep_their_axis() -> None:
    model = Batched()
    calls = [
        evaluate("b", [[1, 1], [2, 2]], rows=2),
        evaluate("b", [3, 3]),
        evaluate("b", [[4, 4], [5, 5]], rows=2),
        evaluate("b", [[6, 6]], rows=1),
    ]
    outcomes = Runner({"b": model}).execute(calls)
    assert model.seen == [3, 3]
    assert [result(o).outputs[0].tolist() for o in outcomes] == [[2, 4], 6, [8, 10], [12]]
    assert result(outcomes[3]).outputs[1].shape == (1, 2)


def test_calls_with_different_configs_are_not_merged() -> None:
    model = Batched()
    calls = [evaluate("b", [i, i], config=c) for i, c in enumerate(["{}", '{"k":1}'] * 2)]
    outcomes = Runner({"b": model}).execute(calls)
    assert model.seen == [2, 2]
    assert [float(result(o).outputs[0]) for o in outcomes] == [0, 2, 4, 6]


def test_only_the_guilty_of_a_merged_call_fail() -> None:
    model = Batched()
    calls = [evaluate("b", [1, 1]), evaluate("b", [-1, 0]), evaluate("b", [2, 2])]
    good, bad, fine = Runner({"b": model}).execute(calls)
    assert model.seen == [3, 1, 1, 1]
    assert isinstance(bad, ModelFailed)
    assert bad.message == "ValueError: minus one"
    assert [float(result(o).outputs[0]) for o in (good, fine)] == [2, 4]


def test_a_merged_answer_that_does_not_fit_is_found_the_same_way() -> None:
    calls = [evaluate("b", [1, 1]), evaluate("b", [-2, 0])]
    good, bad = Runner({"b": Batched()}).execute(calls)
    assert float(result(good).outputs[0]) == 2
    assert isinstance(bad, InvalidOutput)


def test_a_call_that_does_not_fit_leaves_the_others_merged() -> None:
    model = Batched()
    calls = [evaluate("b", [1, 1]), evaluate("b", [1, 2, 3]), evaluate("b", [2, 2])]
    first, wrong, last = Runner({"b": model}).execute(calls)
    assert model.seen == [2]
    assert isinstance(wrong, InvalidInput)
    assert [float(result(o).outputs[0]) for o in (first, last)] == [2, 4]
    (alone, other) = Runner({"b": model}).execute([calls[1], calls[1]])
    assert isinstance(alone, InvalidInput)
    assert isinstance(other, InvalidInput)


def test_a_model_that_is_not_repeatable_does_not_run_again() -> None:
    class Once(Batched):
        repeatable = False

    model = Once()
    calls = [evaluate("b", [1, 1]), evaluate("b", [-1, 0]), evaluate("b", [1, 2, 3])]
    first, second, wrong = Runner({"b": model}).execute(calls)
    assert model.seen == [2]
    assert isinstance(first, ModelFailed)
    assert isinstance(second, ModelFailed)
    assert isinstance(wrong, InvalidInput)


def test_more_rows_than_a_batch_may_have_is_refused() -> None:
    (five,) = Runner({"b": Batched()}).execute([evaluate("b", np.zeros((5, 2)), rows=5)])
    assert isinstance(five, InvalidInput)
    assert "5 rows" in five.message
    assert "at most 4" in five.message


# Runs of rows of models without batches


class Fails(Model):
    """Doubles; raises for -1; remembers its inputs."""

    inputs = {"x": 1}
    outputs = {"y": 1}
    sleep_s = 0.0

    def __init__(self) -> None:
        self.seen: list[float] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        x = inputs["x"]
        self.seen.append(float(x[0]))
        time.sleep(self.sleep_s)
        if x[0] == -1:
            raise ValueError("minus one")
        return 2 * x


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs from ending early because the machine is busy."""
    monkeypatch.setattr("farm.worker.runner.RUN_S", 1e9)


class Noting(Host):
    """Notes which calls begin, and at which row."""

    def __init__(self, noted: list[Any]) -> None:
        self.noted = noted

    def claim(self, positions: Items[int]) -> Items[int]:
        self.noted.append((list(positions), 0))
        return positions

    def begins(self, position: int, row: int = 0) -> bool:
        self.noted.append(([position], row))
        return True


def run_of(*values: float) -> Call:
    return evaluate("m", np.array(values).reshape(-1, 1), rows=len(values))


def test_a_run_of_rows_is_evaluated_row_by_row() -> None:
    model = Fails()
    begun: list[tuple[list[int], int]] = []
    calls = [run_of(1, 2, 3), run_of(4)]
    three, one = Runner({"m": model}).execute(calls, Noting(begun))
    assert result(three).outputs[0].tolist() == [[2.0], [4.0], [6.0]]
    assert result(one).outputs[0].tolist() == [[8.0]]
    assert model.seen == [1, 2, 3, 4]
    assert begun == [([0], 0), ([0], 1), ([0], 2), ([1], 0)]
    assert 0 < result(three).run_time_s < 1.0
    assert result(three).batch_rows == 1


def test_a_run_tells_the_run_time_of_each_row() -> None:
    three = result(Runner({"m": Fails()}).execute([run_of(1, 2, 3)])[0])
    assert len(three.row_times_s) == 3
    assert sum(three.row_times_s) == three.run_time_s
    failed = result(Runner({"m": Fails()}).execute([run_of(1, 2, -1)])[0])
    assert len(failed.row_times_s) == 2
    assert timed(failed, 1.0).row_times_s == failed.row_times_s


class Keeps(Model):
    """Changes its input, and answers with the same arrays each time."""

    inputs = {"x": (2, 1), "text": TensorInfo("text", (), "bytes")}
    outputs = {"y": (2, 1), "text": TensorInfo("text", (), "bytes"), "z": ()}

    def __init__(self) -> None:
        self.y = np.zeros((2, 1))
        self.text = np.empty((), object)

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        x = inputs["x"]
        assert x.flags.writeable
        self.y[:] = x + 1
        x[:] = 99.0
        self.text[()] = inputs["text"][()] * 2
        return {"y": self.y, "text": self.text, "z": x[0, 0]}


@pytest.mark.parametrize("shape", [(3, 2, 1), (3, 2)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_rows_of_a_run_are_private_to_model_and_caller(
    shape: tuple[int, ...], dtype: type
) -> None:
    x: np.ndarray[Any, Any] = np.arange(6, dtype=dtype).reshape(shape)
    texts = np.array([b"a", b"b", b"c"], object)
    call = Call("m", Operation.EVALUATE, (x, texts), rows=3)
    y, text, z = result(Runner({"m": Keeps()}).execute([call])[0]).outputs
    assert y.tolist() == [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]]
    assert text.tolist() == [b"aa", b"bb", b"cc"]
    assert {type(entry) for entry in text.tolist()} == {bytes}
    assert (z.shape, z.tolist()) == ((3,), [99.0] * 3)
    assert x.reshape(-1).tolist() == list(range(6)), "a call never changes"


def test_a_run_ends_at_the_row_that_fails() -> None:
    for values, done in (((1, -1, 3), 1), ((-1, 2), 0), ((1, 2, -1), 2)):
        model = Fails()
        (outcome,) = Runner({"m": model}).execute([run_of(*values)])
        assert isinstance(result(outcome).failed, ModelFailed)
        assert str(result(outcome).failed) == "ValueError: minus one"
        assert result(outcome).rows_done(len(values)) == done
        assert model.seen == list(values[: done + 1])


def test_a_run_that_takes_long_is_answered_with_the_rows_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farm.worker.runner.RUN_S", RUN_S)
    model = Fails()
    model.sleep_s = RUN_S / 2
    (outcome,) = Runner({"m": model}).execute([run_of(*range(100))])
    assert 1 <= result(outcome).rows_done(100) <= 2
    assert result(outcome).failed is None


class Wide(Model):
    inputs = {"x": 1}
    outputs = {"y": RUN_BYTES // 8 // 4}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return np.zeros(self.outputs["y"])


def test_a_run_of_large_outputs_is_answered_with_what_makes_a_message() -> None:
    (outcome,) = Runner({"m": Wide()}).execute([run_of(*range(50))])
    assert result(outcome).rows_done(50) <= 4


def test_a_host_may_end_a_run_between_two_rows() -> None:
    model = Fails()
    asked: list[int] = []

    class Draining(Host):
        def begins(self, position: int, row: int = 0) -> bool:
            asked.append(position)
            return len(model.seen) < 3

    (outcome,) = Runner({"m": model}).execute([run_of(*range(9))], Draining())
    assert result(outcome).outputs[0].tolist() == [[0.0], [2.0], [4.0]]
    assert set(asked) == {0}


class Ragged(Model):
    """Returns as many numbers as requested."""

    inputs = {"x": 1}
    outputs = {"y": -1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return np.arange(inputs["x"][0])


def test_a_run_ends_before_a_row_of_another_shape() -> None:
    (outcome,) = Runner({"m": Ragged()}).execute([run_of(2, 2, 3)])
    assert result(outcome).outputs[0].tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_what_must_not_run_twice_takes_no_runs() -> None:
    model = Fails()
    model.repeatable = False
    (outcome,) = Runner({"m": model}).execute([run_of(1, 2)])
    assert isinstance(outcome, InvalidInput)
    assert model.seen == []


def test_one_row_of_a_model_without_a_batch_axis_keeps_its_axis() -> None:
    (outcome,) = Runner({"square": Square()}).execute([evaluate("square", [[1, 2, 3]], rows=1)])
    np.testing.assert_array_equal(result(outcome).outputs[0], [[1, 4, 9]])


def test_other_number_types_merge_in_the_type_the_model_declares() -> None:
    whole = Call("b", Operation.EVALUATE, (np.array([1, 2]),))
    small = Call("b", Operation.EVALUATE, (np.array([3, 4], dtype=np.float32),))
    model = Batched()
    outcomes = Runner({"b": model}).execute([whole, small])
    assert model.seen == [2]
    assert [float(result(o).outputs[0]) for o in outcomes] == [3, 7]


@given(st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), st.booleans()), max_size=12))
def test_merged_calls_have_the_outcomes_of_lone_ones(
    shapes: list[tuple[int | None, bool]],
) -> None:
    calls = []
    for i, (rows, guilty) in enumerate(shapes):
        x = np.arange(2.0 * (rows or 1)).reshape(-1, 2) + 10 * i
        x[0, 0] = -1 if guilty else x[0, 0]
        calls.append(evaluate("b", x[0] if rows is None else x, rows=rows))
    runner = Runner({"b": Batched()})
    for call, merged in zip(calls, runner.execute(calls), strict=True):
        (alone,) = runner.execute([call])
        if isinstance(alone, FarmError):
            assert isinstance(merged, FarmError)
            assert merged.message == alone.message
        else:
            for a, b in zip(result(merged).outputs, alone.outputs, strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.shape == b.shape


# --- reports of running calls -----------------------------------------------------------------


def test_a_host_hears_what_runs_before_each_model_call() -> None:
    events: list[Any] = []

    class Telling(Batched):
        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            events.append(f"{len(inputs['x'])} rows")
            return super().evaluate(inputs, config)

    calls = [evaluate("b", [1, 1]), evaluate("b", [-1, 0])]
    Runner({"b": Telling()}).execute(calls, Noting(events))
    assert events == [([0, 1], 0), "2 rows", ([0], 0), "1 rows", ([1], 0), "1 rows"]


def test_outcomes_come_as_each_model_call_ends() -> None:
    model = Batched()
    steps = iter(Runner({"b": model}).run([evaluate("b", [i, i]) for i in range(6)]))
    assert [i for i, _ in next(steps)] == [0, 1, 2, 3]
    assert model.seen == [4]
    assert [i for i, _ in next(steps)] == [4, 5]
    with pytest.raises(StopIteration):
        next(steps)


def test_what_is_not_claimed_does_not_run() -> None:
    model = Batched()
    planned: list[list[int]] = []

    class Recalling(Host):
        def claim(self, positions: Items[int]) -> Items[int]:
            planned.append(list(positions))
            return [i for i in positions if i not in (1, 4, 5)]

    calls = [evaluate("b", [i, i]) for i in range(7)]
    steps = Runner({"b": model}).run(calls, Recalling())
    assert [[i for i, _ in step] for step in steps] == [[0, 2, 3], [6]]
    assert planned == [[0, 1, 2, 3], [4, 5, 6]]
    assert model.seen == [3, 1]


def test_no_calls_no_outcomes() -> None:
    assert Runner({}).execute([]) == []
    assert Runner({}).models() == ()


def test_an_operation_that_the_model_lacks_is_named() -> None:
    call = Call("s", Operation.GRADIENT, (np.zeros(3),))
    (outcome,) = Runner({"s": Square()}).execute([call])
    assert isinstance(outcome, UnsupportedFeature)


# --- results and exceptions of models ---------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        [1.0, 2.0, 3.0],
        np.ones((2, 2)),
        ["a", "b"],
        [1 + 2j, 3],
        None,
        {"z": [1, 2]},
        [[1.0], [1.0, 2.0]],
        pytest.param(object(), id="an object"),
    ],
    ids=str,
)
def test_an_answer_that_does_not_fit_is_invalid_output(answer: Any) -> None:
    assert isinstance(answer_of(answer), InvalidOutput)


def test_non_finite_numbers_are_answers() -> None:
    outputs = result(answer_of([np.nan, -np.inf])).outputs
    np.testing.assert_array_equal(outputs[0], [np.nan, -np.inf])


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad x"), "ValueError: bad x"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (MemoryError("cannot allocate 8 GiB"), "MemoryError: cannot allocate 8 GiB"),
        (StopIteration(), "StopIteration"),
        (Silent(), "Silent: (its text cannot be shown)"),
    ],
    ids=repr,
)
def test_whatever_a_model_raises_is_model_failed(error: BaseException, message: str) -> None:
    outcome = answer_of(error)
    assert isinstance(outcome, ModelFailed)
    assert outcome.message == message
    assert "in evaluate" in outcome.detail
    assert run.__file__ not in outcome.detail, "the traceback begins in the model's own code"


def test_the_log_has_the_traceback_of_a_failure_and_nothing_of_a_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "farm.worker.runner"):
        answer_of(ValueError("bad x"))
        Runner({"s": Square()}).execute([evaluate("s", [1])])
    (record,) = caplog.records
    assert "evaluate of model 'm' failed: Traceback" in record.getMessage()
    assert "ValueError: bad x" in record.getMessage()


def test_a_long_message_is_cut_and_kept_whole_in_the_detail() -> None:
    outcome = answer_of(ValueError("x" * 100_000))
    assert isinstance(outcome, ModelFailed)
    assert len(outcome.message) < 3000
    assert len(outcome.detail) > 100_000


class Endless(Square):
    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return self.evaluate(inputs, config)


class Huge(Square):
    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return np.empty(1 << 50)


@pytest.mark.parametrize(
    ("model", "error"), [(Endless(), "RecursionError"), (Huge(), "MemoryError")]
)
def test_what_a_model_uses_up_is_model_failed(model: Model, error: str) -> None:
    (outcome,) = Runner({"m": model}).execute([evaluate("m", [1, 2, 3])])
    assert isinstance(outcome, ModelFailed)
    assert outcome.message.startswith(error)
    assert len(outcome.detail) < 10_000


def test_an_error_of_the_farm_stands_for_itself_without_its_frames() -> None:
    error = Unavailable("the server is gone", detail="connection refused")
    outcome = answer_of(error)
    assert outcome is error
    assert error.__traceback__ is None


def test_a_describe_that_raises_fails_its_calls_alone() -> None:
    class Picky(Batched):
        def describe(self, config: Config) -> Any:
            if "mesh" in config:
                raise KeyError("no such mesh")
            return super().describe(config)

    runner = Runner({"b": Picky()})
    calls = [evaluate("b", [1, 1], config=c) for c in ["{}", '{"mesh":9}', '{"mesh":9}']]
    good, bad, worse = runner.execute(calls)
    assert float(result(good).outputs[0]) == 2
    assert isinstance(bad, ModelFailed)
    assert isinstance(worse, ModelFailed)
    (described,) = runner.execute([Call("b", Operation.DESCRIBE, config='{"mesh":9}')])
    assert isinstance(described, ModelFailed)


def test_a_model_that_cannot_describe_itself_says_so_when_the_models_are_listed() -> None:
    class Needy(Square):
        def describe(self, config: Config) -> Any:
            return {"x": config["n"]}, {"y": 1}

    with pytest.raises(ModelFailed, match=r"model 'needy' cannot describe itself .* KeyError: 'n'"):
        Runner({"needy": Needy()}).models()


@pytest.mark.parametrize("config", ["{", "[1]"])
def test_a_config_that_is_no_object_is_refused(config: str) -> None:
    (outcome,) = Runner({"s": Square()}).execute([evaluate("s", [1, 2, 3], config=config)])
    assert isinstance(outcome, InvalidInput)


# --- sizes by config --------------------------------------------------------------------------


class Sized(Model):
    def __init__(self) -> None:
        self.described = 0

    def describe(self, config: Config) -> Any:
        self.described += 1
        n = config.get("n", 1)
        return {"x": n}, {"y": n}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"] + config.pop("shift", 0)


def test_sizes_follow_the_config_and_are_asked_once() -> None:
    model = Sized()
    runner = Runner({"s": model})
    for _ in range(3):
        (outcome,) = runner.execute([evaluate("s", [1, 2], config='{"n":2,"shift":5}')])
        assert result(outcome).outputs[0].tolist() == [6, 7], "each call gets a fresh config"
    assert model.described == 1
    (described,) = runner.execute([Call("s", Operation.DESCRIBE, config='{"n":7}')])
    info = result(described).info
    assert info is not None
    assert info.inputs[0].shape == (7,)


def test_descriptions_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "DESCRIPTIONS_KEPT", 10)
    model = Sized()
    runner = Runner({"s": model})
    configs = [f'{{"k":{i}}}' for i in range(25)]
    runner.execute([evaluate("s", [1], config=c) for c in configs])
    runner.execute([evaluate("s", [1], config=c) for c in configs[-10:]])
    assert model.described == 25
    runner.execute([evaluate("s", [1], config=configs[0])])
    assert model.described == 26


# --- private data -----------------------------------------------------------------------------


def test_a_model_may_write_to_its_inputs() -> None:
    class Greedy(Square):
        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            inputs["x"] *= 2
            return inputs["x"]

    x = np.array([1.0, 2.0, 3.0])
    x.flags.writeable = False
    call = Call("m", Operation.EVALUATE, (x,))
    for outcome in Runner({"m": Greedy()}).execute([call, call]):
        np.testing.assert_array_equal(result(outcome).outputs[0], [2, 4, 6])
    np.testing.assert_array_equal(x, [1, 2, 3])


def test_members_that_run_again_get_the_inputs_untouched() -> None:
    class Greedy(Batched):
        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            value = super().evaluate(Inputs(x=inputs["x"].copy()), config)
            inputs["x"][:] = 99
            return value

    good, bad = Runner({"b": Greedy()}).execute([evaluate("b", [1, 1]), evaluate("b", [-1, 0])])
    assert float(result(good).outputs[0]) == 2
    assert isinstance(bad, ModelFailed)


@pytest.mark.parametrize("max_batch", [1, 4])
def test_a_model_may_use_its_buffers_again(max_batch: int) -> None:
    class Reusing(Model):
        inputs = {"x": 1}
        outputs = {"y": 1}

        def __init__(self) -> None:
            self.max_batch = max_batch
            self.buffer = np.zeros((max_batch, 1) if max_batch > 1 else (1,))

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            self.buffer[:] = inputs["x"]
            return self.buffer

        def gradient(self, *args: Any) -> Any:
            self.buffer.flat[0] += 1
            return self.buffer.ravel()[:1]

    runner = Runner({"m": Reusing()})
    calls = [evaluate("m", np.full((max_batch, 1), i), rows=max_batch) for i in range(3)]
    outcomes = runner.execute(calls)
    assert [result(o).outputs[0].ravel()[0] for o in outcomes] == [0, 1, 2]
    wrt = Derivative(0, 0, sens=np.ones(1))
    call = Call("m", Operation.GRADIENT, (np.zeros(1),), derivative=wrt)
    outcomes = runner.execute([call, call])
    assert [result(o).outputs[0].tolist() for o in outcomes] == [[3], [4]]


class Texts(Model):
    """Repeats each text as often as `times` says, and records the rows it got."""

    inputs = {"text": TensorInfo("text", (), "bytes"), "times": TensorInfo("times", (), "int64")}
    outputs = {"out": TensorInfo("out", (), "bytes"), "rows": TensorInfo("rows", (), "int64")}
    max_batch = 8

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        out = [t * int(n) for t, n in zip(inputs["text"], inputs["times"], strict=True)]
        return {"out": np.array(out, object), "rows": np.full(len(out), len(out))}


def test_texts_of_several_calls_share_an_evaluation() -> None:
    def text(*texts: bytes) -> Call:
        arrays = np.array(texts, object), np.full(len(texts), 2)
        return Call("texts", Operation.EVALUATE, arrays, rows=len(texts))

    lone = Call("texts", Operation.EVALUATE, (np.array(b"x", object), np.array(3)))
    outcomes = Runner({"texts": Texts()}).execute([text(b"a", b"b\0"), lone, text(b"")])
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert [r.outputs[0].tolist() for r in results] == [[b"aa", b"b\0b\0"], b"xxx", [b""]]
    assert [r.outputs[1].tolist() for r in results] == [[4, 4], 4, [4]]
    assert [r.batch_rows for r in results] == [4, 4, 4]


class Sums(Model):
    """Row sums of any number of columns."""

    inputs = {"x": -1}
    outputs = {"sum": TensorInfo("sum", ())}
    max_batch = 8

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"].sum(axis=1)


def test_calls_of_one_size_share_an_evaluation_and_others_do_not() -> None:
    calls = [
        Call("sums", Operation.EVALUATE, (np.full(n, float(k)),))
        for k, n in enumerate((2, 3, 2, 3, 1))
    ]
    outcomes = Runner({"sums": Sums()}).execute(calls)
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert [float(r.outputs[0]) for r in results] == [0.0, 3.0, 4.0, 9.0, 4.0]
    assert [r.batch_rows for r in results] == [2, 2, 2, 2, 1]


class Counts(Model):
    inputs = {"x": 1}
    outputs = {"y": 1}
    ended = False

    def stream(self, inputs: Inputs, config: Config) -> Any:
        try:
            for k in range(int(inputs["x"][0])):
                yield float(k)
            if config:
                raise ValueError("diverged")
        finally:
            self.ended = True


def count_to(x: float, config: str = "{}", rows: int | None = None) -> Call:
    return Call("c", Operation.STREAM, (np.full((rows, 1) if rows else 1, x),), config, rows=rows)


def test_a_stream_has_its_answers_and_its_end() -> None:
    told = list(Runner({"c": Counts()}).run([count_to(2.0), count_to(1.0, rows=1)]))
    rows = [(i, r.more, [y.tolist() for y in r.outputs]) for [(i, r)] in told]  # type: ignore[union-attr]  # no errors
    assert rows == [
        (0, True, [[0.0]]),
        (0, True, [[1.0]]),
        (0, False, []),
        (1, True, [[[0.0]]]),
        (1, False, []),
    ]


def test_an_error_ends_a_stream() -> None:
    outcomes = [o for [(_, o)] in Runner({"c": Counts()}).run([count_to(1.0, '{"a":1}')])]
    assert isinstance(outcomes[0], Result)
    assert isinstance(outcomes[1], ModelFailed)
    assert len(outcomes) == 2
    ((_, error),) = next(iter(Runner({"c": Counts()}).run([count_to(1.0, rows=2)])))
    assert isinstance(error, InvalidInput)


def test_a_cancelled_stream_ends_after_the_answer_that_came() -> None:
    class Cancelled(Host):
        def is_wanted(self, position: int) -> bool:
            return False

    model = Counts()
    seen = list(Runner({"c": model}).run([count_to(1e9)], Cancelled()))
    assert [r.more for [(_, r)] in seen] == [True, False]  # type: ignore[union-attr]  # no errors
    assert model.ended


class Priced(Batched):
    """Costs the product of its entries, times a factor of the config; negative ones say so."""

    max_batch = 2

    def cost(self, inputs: Inputs, config: Config) -> Any:
        assert inputs["x"].shape == (2,)
        if inputs["x"][0] == 7:
            raise ValueError("seven")
        return config.get("answer", inputs["x"].prod() * config.get("by", 1))


def priced(x: Any, rows: int | None = None, config: str = "{}") -> Outcome:
    call = Call("m", Operation.COST, (np.array(x, dtype=float),), config, rows=rows)
    return Runner({"m": Priced()}).execute([call])[0]


def test_costs_of_rows() -> None:
    """More rows than a batch has, each asked by itself."""
    (costs,) = result(priced([[1, 2], [3, 4], [5, 6]], 3, '{"by":2}')).outputs
    assert costs.dtype == np.float64
    assert costs.tolist() == [[4.0], [24.0], [60.0]]
    (cost,) = result(priced([3, 4])).outputs
    assert cost.tolist() == [12.0]


@pytest.mark.parametrize(
    ("answer", "actual"),
    [("-1", "-1"), ("NaN", "nan"), ('"long"', "'long'"), ("[1, 2]", "[1, 2]"), ("null", "None")],
)
def test_a_cost_is_a_finite_number(answer: str, actual: str) -> None:
    outcome = priced([[1, 2]], 1, f'{{"answer":{answer}}}')
    assert isinstance(outcome, InvalidOutput)
    expected = f"cost of model 'm' is {actual} for row 0 (counted from 0); expected a finite number"
    assert expected in outcome.message


def test_a_cost_that_fails() -> None:
    outcome = priced([[1, 2], [7, 4]], 2)
    assert isinstance(outcome, ModelFailed)
    assert outcome.message == "ValueError: seven"
    assert 'raise ValueError("seven")' in outcome.detail
    assert isinstance(
        Runner({"m": Square()}).execute([Call("m", Operation.COST, (np.zeros(3),))])[0],
        UnsupportedFeature,
    )


# Sequences


class Mean(Model):
    """The mean of x over a sequence, and what it knows about its request; -1 raises."""

    inputs = {"x": 1}
    outputs = {"mean": 1}
    stateful = True

    def __init__(self) -> None:
        self.seen: list[tuple[int | str, bool, bool]] = []

    def evaluate(  # type: ignore[override]  # a stateful model has a third argument
        self, inputs: Inputs, config: Config, sequence: Sequence
    ) -> Any:
        self.seen.append((sequence.id, sequence.start, sequence.end))
        if inputs["x"] == -1:
            raise ValueError("minus one")
        sequence.setdefault("all", []).append(float(inputs["x"][0]))
        return np.mean(sequence["all"])


def kept(x: float, sequence: int | str, flags: str = "", **options: Any) -> Call:
    step = SequenceStep(sequence, "s" in flags, "e" in flags)
    return Call("mean", Operation.EVALUATE, (np.array([x]),), step=step, **options)


def means(runner: Runner, *calls: Call) -> list[Any]:
    outcomes = runner.execute(calls)
    return [o.outputs[0].item() if isinstance(o, Result) else type(o) for o in outcomes]


def test_calls_of_a_sequence_share_a_state() -> None:
    model = Mean()
    runner = Runner({"mean": model})
    calls = kept(1.0, 7, "s"), kept(4.0, "7", "s"), kept(3.0, 7), kept(6.0, "7"), kept(5.0, 7, "e")
    assert means(runner, kept(9.0, 7, "s"), *calls) == [9.0, 1.0, 4.0, 2.0, 5.0, 3.0]
    assert model.seen[0] == (7, True, False)
    assert model.seen[-1] == (7, False, True)
    assert runner.keeps_sequences()  # "7" goes on
    assert means(runner, kept(1.0, 7)) == [InvalidInput]


def test_ended_sequences_leave_no_state() -> None:
    runner = Runner({"mean": Mean()})
    assert means(runner, kept(1.0, 7, "se"), kept(1.0, 8, "s"), kept(1.0, 9, "s")) == [1.0] * 3
    runner.end_sequence("mean", 8)
    runner.end_sequence("mean", 8)  # unknown ones are ignored
    runner.end_sequence("other", 9)
    assert means(runner, kept(1.0, 8), kept(3.0, 9)) == [InvalidInput, 2.0]
    runner.end_sequences()
    assert not runner.keeps_sequences()


def test_an_error_of_the_model_keeps_the_state_unless_it_was_the_last_call() -> None:
    runner = Runner({"mean": Mean()})
    calls = kept(-1.0, 7, "s"), kept(2.0, 7), kept(-1.0, 7, "e")
    assert means(runner, *calls) == [ModelFailed, 2.0, ModelFailed]
    assert not runner.keeps_sequences()


def test_a_call_of_one_row_keeps_its_axis_in_a_sequence() -> None:
    runner = Runner({"mean": Mean()})
    step = SequenceStep(7, start=True)
    call = Call("mean", Operation.EVALUATE, (np.array([[2.0]]),), rows=1, step=step)
    (outcome,) = runner.execute([call])
    assert isinstance(outcome, Result)
    assert outcome.outputs[0].shape == (1, 1)


def test_steps_fit_only_models_with_a_state() -> None:
    runner = Runner({"mean": Mean(), "square": Square()})
    plain = Call("mean", Operation.EVALUATE, (np.ones(1),))
    step = Call("square", Operation.EVALUATE, (np.ones(3),), step=SequenceStep(7, start=True))
    unknown = Call("nobody", Operation.EVALUATE, (np.ones(3),), step=SequenceStep(7, start=True))
    outcomes = runner.execute([plain, step, unknown])
    assert [type(o) for o in outcomes] == [UnsupportedFeature, UnsupportedFeature, ModelNotFound]
    assert "keeps a state for each sequence of requests" in str(outcomes[0])
    assert "leave out the sequence 7, or declare stateful = True" in str(outcomes[1])
    assert not runner.keeps_sequences()


# --- a run of rows that another thread splits while a row takes long ---------------------------


class Steps(Model):
    """Waits in row `at` until it may go on; a row of -1 fails, one of -2 has another shape."""

    inputs = {"x": 1}
    outputs = {"y": (-1,)}

    def __init__(self, at: float) -> None:
        self.at = at
        self.waits, self.go = threading.Event(), threading.Event()
        self.seen: list[float] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        (x,) = inputs["x"]
        self.seen.append(float(x))
        if x == self.at:
            self.waits.set()
            assert self.go.wait(LIMIT_S)
        if x == -1:
            raise ValueError("minus one")
        return np.full(2 if x == -2 else 1, 2 * x)


class SplitRun:
    """A run in a thread of its own, which waits in one row."""

    def __init__(self, values: list[float], at: float) -> None:
        self.model = Steps(at)
        self.run = RowRun(NULL_HOST, 0)
        self.found: list[Result] = []
        call = Call("m", Operation.EVALUATE, (np.array(values)[:, None],), rows=len(values))
        info = info_of(self.model, {}, name="m")
        self.thread = threading.Thread(
            target=lambda: self.found.append(self.run.evaluate(self.model, info, call))
        )
        self.thread.start()
        assert self.model.waits.wait(LIMIT_S)

    def end(self) -> Result:
        self.model.go.set()
        self.thread.join(LIMIT_S)
        (result,) = self.found
        return result


@pytest.mark.parametrize("row", [0, 2, 3])
def test_the_rows_before_are_answered_and_none_begins_behind(row: int) -> None:
    running = SplitRun([1.0, 2.0, 3.0, 4.0], at=row + 1.0)
    first = running.run.split()
    assert first is not None
    assert first.more
    assert len(first.row_times_s) == row
    if row:
        assert first.outputs[0].tolist() == [[2.0 * n] for n in range(1, row + 1)]
    assert running.run.split() is None, "it is split once"
    last = running.end()
    assert not last.more
    assert last.outputs[0].tolist() == [[2.0 * n] for n in range(1, row + 2)]
    assert last.row_times_s[:row] == first.row_times_s
    assert running.model.seen == [float(n) for n in range(1, row + 2)]


def test_the_first_answer_does_not_change_when_the_row_ends() -> None:
    running = SplitRun([1.0, 2.0, 3.0], at=2.0)
    first = running.run.split()
    running.end()
    assert first is not None
    assert first.outputs[0].tolist() == [[2.0]]


@pytest.mark.parametrize(("x", "failed"), [(-1.0, ModelFailed), (-2.0, type(None))])
def test_a_row_that_fails_or_has_another_shape_is_not_in_the_answer(x: float, failed: type) -> None:
    running = SplitRun([1.0, x, 3.0], at=x)
    assert running.run.split() is not None
    last = running.end()
    assert isinstance(last.failed, failed)
    assert last.rows_done(3) == 1


def test_before_and_after_a_run_there_is_nothing_to_split() -> None:
    assert RowRun(NULL_HOST, 0).split() is None
    running = SplitRun([1.0, 2.0], at=2.0)
    assert running.end().rows_done(2) == 2
    assert running.run.split() is None
