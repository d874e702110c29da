"""Failures: groups of calls, what each shows, and that memory and cost are bounded."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, islice, product
from string import ascii_lowercase
from types import SimpleNamespace

import numpy as np
import pytest

from farm.call import NO_HINTS, Array, Call, ModelInfo, Operation, TensorInfo, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import Failure
from farm.dispatcher.events import Departure
from farm.errors import FarmError, InvalidInput, InvalidOutput, LossCause, ModelFailed
from farm.monitoring import failures as module
from farm.monitoring.failures import (
    LONGEST_DETAIL,
    LONGEST_NAME,
    LONGEST_OUTPUT,
    LONGEST_SUMMARY,
    LONGEST_TEXT,
    MOST_GROUPS,
    MOST_HOSTS,
    MOST_LOSSES,
    MOST_OF_A_KIND,
    SUMMARIES_PER_S,
    Failures,
    summary,
)
from tests.dispatcher.ended_calls import AtOnce

X = (TensorInfo("x", (1,)),)
MODELS = {name: ModelInfo(name, X, X) for name in ("beam", "wave")}


def farm_of(models: Mapping[str, ModelInfo]) -> Dispatcher:
    dispatcher = Dispatcher([])
    dispatcher.expect(models.values())
    return dispatcher


def words(count: int) -> list[str]:
    """Return so many different texts, without digits: these do not count."""
    return [a + b for a, b in islice(product(ascii_lowercase, repeat=2), count)]


class Watched(Failures):
    """Failures with a clock that is set by hand."""

    def __init__(self) -> None:
        super().__init__(farm_of(MODELS))
        self.now = 1000.0

    def fail(self, failure: Failure) -> None:
        self.failed(failure, self.now)


def failure(
    text: str = "no root",
    *,
    kind: type[FarmError] = ModelFailed,
    model: str = "beam",
    x: float = 1.0,
    calls: int = 1,
    worker: str = "node1/1-a",
    client: str = "me",
    detail: str = "",
    operation: Operation = Operation.EVALUATE,
) -> Failure:
    call = Call(model, operation, (np.array([x]),))
    return Failure(kind(text, detail=detail), calls, call, None, worker, client)


def test_a_group_shows_the_last_failure_of_its_reason() -> None:
    failures = Watched()
    failures.fail(failure("no root in [0, 1]", x=1.0, detail="line 3"))
    failures.now = 1010.0
    last = failure("no root in [2, 3]", x=2.0, calls=4, worker="node2/2-b", client="")
    failures.fail(last)
    (row,) = failures.snapshot()
    assert row == {
        "id": row["id"],
        "kind": "ModelFailed",
        "model": "beam",
        "operation": "evaluate",
        "text": "no root in [2, 3]",
        "count": 5,
        "first": 1000.0,
        "last": 1010.0,
        "worker": "node2/2-b",
        "client": "",
        "inputs": "x = [2.0]",
    }
    assert failures.snapshot(details=True) == [{**row, "detail": "line 3"}]


def test_other_reasons_are_other_groups_and_the_last_one_comes_first() -> None:
    failures = Watched()
    for each in (
        failure("no root in 1"),
        failure("no minimum"),
        failure("no root in 2", kind=InvalidOutput),
        failure("no root in 3", model="wave"),
        failure("no root in 4", operation=Operation.COST),
        failure("no root in 5"),
    ):
        failures.fail(each)
    rows = failures.snapshot()
    assert [(row["text"][-1], row["count"]) for row in rows] == [
        *(("1", 2), ("4", 1), ("3", 1), ("2", 1), ("m", 1))
    ]
    assert len({row["id"] for row in rows}) == len(rows)


def test_the_id_of_a_group_is_the_same_in_another_farm() -> None:
    ids = set()
    for text, worker in (("no root in 1", "n/1"), ("no root in 2", "")):
        failures = Watched()
        failures.fail(failure(text, worker=worker))
        (row,) = failures.snapshot()
        assert row["worker"] == (worker or None)
        ids.add(row["id"])
    assert len(ids) == 1


def test_memory_is_bounded_whatever_the_texts() -> None:
    failures = Watched()
    some, kinds = words(MOST_GROUPS + 100), list(FarmError.kinds.values())
    for number, word in enumerate(some):
        kind = kinds[number % len(kinds)]
        text = f"{word} {'long ' * 1000}"
        failures.fail(failure(text, kind=kind, detail=text * 2, worker=text, client=text))
    rows = failures.snapshot()
    assert len(rows) == MOST_GROUPS
    assert rows[0]["text"].startswith(some[-1])
    assert max(len(row["text"]) for row in rows) == LONGEST_TEXT
    assert max(len(row["client"]) for row in rows) == LONGEST_NAME
    assert max(len(row["worker"]) for row in rows) == LONGEST_NAME
    assert len(failures.snapshot(details=True)[0]["detail"]) == LONGEST_DETAIL


def test_one_model_whose_texts_all_differ_does_not_crowd_out_others() -> None:
    failures = Watched()
    failures.fail(failure("no root", model="wave"))
    some = words(2 * MOST_OF_A_KIND)
    for word in some:
        failures.fail(failure(word))
    rows = failures.snapshot()
    assert [row["text"] for row in rows if row["model"] == "wave"] == ["no root"]
    assert len(rows) == MOST_OF_A_KIND + 1
    assert rows[0]["text"] == some[-1]


def test_the_group_that_is_forgotten_was_seen_longest_ago() -> None:
    failures = Watched()
    first, second, *others, last = words(MOST_OF_A_KIND + 1)
    for word in (first, second, *others, first, last):
        failures.fail(failure(word))
    assert {row["text"] for row in failures.snapshot()} == {first, *others, last}


def test_the_inputs_are_those_of_the_call_that_the_text_is_about() -> None:
    failures = Watched()
    for x in range(3):
        failures.now += 0.4
        failures.fail(
            failure(
                f"no root at {x}", x=float(x), worker=f"n/{x}", client=f"c{x}", detail=f"line {x}"
            )
        )
    (row,) = failures.snapshot(details=True)
    assert row["count"] == 3
    assert row["last"] == failures.now
    shown = [row[key] for key in ("text", "inputs", "worker", "client", "detail")]
    assert shown == ["no root at 0", "x = [0.0]", "n/0", "c0", "line 0"]
    failures.now += 1.0
    failures.fail(failure("no root at 7", x=7.0))
    (row,) = failures.snapshot()
    assert (row["text"], row["inputs"]) == ("no root at 7", "x = [7.0]")


def test_summaries_of_all_groups_together_are_bounded() -> None:
    failures = Watched()
    kinds = list(FarmError.kinds.values())
    for number, word in enumerate(some := words(2 * SUMMARIES_PER_S)):
        failures.fail(failure(word, kind=kinds[number % len(kinds)]))
        if number == SUMMARIES_PER_S - 1:
            assert {row["inputs"] for row in failures.snapshot()} == {"x = [1.0]"}
    assert failures.snapshot()[0]["inputs"] == ""
    failures.now += 1.0
    failures.fail(failure(some[-1], kind=kinds[number % len(kinds)]))
    assert failures.snapshot()[0]["inputs"] == "x = [1.0]"


def call(*inputs: Array, config: str = "{}", rows: int | None = None) -> Call:
    return Call("m", Operation.EVALUATE, inputs, config, rows=rows)


ROWS = np.array([[1.0], [2.0], [3.0]])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.array([0.1, -2.5e-8]), "[0.1, -2.5e-08]"),
        (np.array([1, 2]), "[1, 2]"),
        (np.array(3.5), "3.5"),
        (np.array([]), "[]"),
        (np.array([[True], [False]]), "[True, False] of shape [2, 1]"),
        (np.arange(100.0), "[0.0, 1.0, 2.0, 3.0, 4.0, \u2026, 98.0, 99.0] (100 values)"),
        (np.zeros((3, 5)), "[0.0, 0.0, 0.0, 0.0, 0.0, \u2026, 0.0, 0.0] (of shape [3, 5])"),
        (np.array([b"text\x1b[2J"], dtype=object), "[b'text\\x1b[2J']"),
    ],
)
def test_values_of_an_input(values: Array, text: str) -> None:
    assert summary(call(values), None) == f"input 0 = {text}"


@pytest.mark.parametrize(
    ("asked", "row", "text"),
    [
        (
            call(np.ones(1), np.zeros(1), config='{"mesh":2}'),
            None,
            'E = [1.0]; input 1 = [0.0]; config {"mesh":2}',
        ),
        (call(config='{"a":"\x1b"}'), None, 'config {"a":"\\x1b"}'),
        (call(ROWS, rows=3), 1, "E = [2.0]"),
        (call(ROWS, rows=3), None, "E = [1.0]; the first of 3 rows that ran together"),
    ],
    ids=["names and config", "control characters", "the row that failed", "rows together"],
)
def test_a_summary_has_names_the_config_and_the_row_that_failed(
    asked: Call, row: int | None, text: str
) -> None:
    assert summary(asked, row, ["E"]) == text


def test_a_summary_is_short_however_much_was_sent() -> None:
    text = np.array([b"x" * 100_000] * 8, dtype=object)
    asked = call(*[text] * 50, config="c" * 100_000)
    assert len(summary(asked, None, ["n" * 10_000] * 50)) == LONGEST_SUMMARY
    assert summary(call(*[np.zeros(1)] * 50), None).endswith("; and 42 more inputs")


# Questions about failures


@pytest.fixture
def what_failed() -> Failures:
    dispatcher = Dispatcher([])
    dispatcher.ended = AtOnce()
    what_failed = Failures(dispatcher)
    for text, line in (("no root", "line 3"), ("no minimum", "line 4")):
        failed = failure(text, detail=line)
        dispatcher.ended.refused(failed.call, NO_HINTS, failed.error)
    for left in dispatcher.on_left:
        left(worker(), Departure("exit code 3", detail="the end of its log"))
    return what_failed


def test_all_groups_come_without_their_details_unless_these_are_asked_for(
    what_failed: Failures,
) -> None:
    rows = what_failed.answer({})
    assert [(row["text"], "detail" in row) for row in rows] == [
        ("no minimum", False),
        ("no root", False),
    ]
    details = [row["detail"] for row in what_failed.answer({"detail": "all"})]
    assert details == ["line 4", "line 3"]


def test_one_group_is_shown_in_full_also_one_of_lost_workers(what_failed: Failures) -> None:
    wanted = what_failed.answer({})[1]
    assert what_failed.answer({"id": wanted["id"]}) == {**wanted, "detail": "line 3"}
    losses = Failures(Dispatcher([]))
    losses.left(worker(), Departure("exit code 3"))
    loss = what_failed.answer({"id": losses.losses()[0]["id"]})
    assert (loss["text"], loss["detail"]) == ("exit code 3", "the end of its log")


def test_an_unknown_group_is_named_with_what_to_do(what_failed: Failures) -> None:
    with pytest.raises(InvalidInput, match=r"the id 'x'; `farm failures --all` lists the 3 that"):
        what_failed.answer({"id": "x"})


def worker(number: int = 1, host: str = "node1") -> WorkerInfo:
    return WorkerInfo(f"{host}/{number}-ab", (), host=host)


def test_losses_of_one_reason_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(101.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: next(times)))
    losses = Failures(Dispatcher([]))
    losses.left(worker(1), Departure("exit code 3", LossCause.CRASH, "first"))
    losses.left(worker(2), Departure("exit code 3", LossCause.CRASH, "second"))
    losses.left(worker(3, "node2"), Departure("exit code 3", LossCause.CRASH))
    losses.left(worker(4), Departure("stopped", drained=True))
    losses.left(worker(5), Departure("stopped by its supervisor", LossCause.STOPPED))
    (row,) = losses.losses()
    assert [row] == [
        {
            "id": row["id"],
            "cause": "crash",
            "text": "exit code 3",
            "count": 3,
            "first": 101.0,
            "last": 103.0,
            "worker": "node2/3-ab",
            "host": "node2",
            "hosts": {"node1": 2, "node2": 1},
            "exit_code": 3,
            "signal": "",
            "detail": "second",
        }
    ]


def test_other_causes_codes_and_signals_are_other_groups() -> None:
    losses = Failures(Dispatcher([]))
    for reason in ("exit code 3", "exit code 1", "signal SIGKILL", "signal SIGSEGV"):
        losses.left(worker(), Departure(reason, LossCause.CRASH))
    losses.left(worker(), Departure("exit code 3", LossCause.RECLAIMED))
    shown = [(row["cause"], row["exit_code"], row["signal"]) for row in losses.losses()]
    assert shown == [
        ("reclaimed", 3, ""),
        ("crash", None, "SIGSEGV"),
        ("crash", None, "SIGKILL"),
        ("crash", 1, ""),
        ("crash", 3, ""),
    ]


def test_memory_is_bounded() -> None:
    losses = Failures(Dispatcher([]))
    long, names = "z" * 10_000, words(MOST_LOSSES + 20)
    for name in names:
        losses.left(worker(1, name), Departure(f"no {name} {long}", LossCause.CRASH, long))
        losses.left(worker(1, name), Departure("exit code 3", LossCause.CRASH))
    rows = losses.losses()
    assert len(rows) == MOST_LOSSES
    assert max(len(row["text"]) for row in rows) == LONGEST_TEXT
    assert max(len(row["detail"]) for row in rows) == LONGEST_OUTPUT
    assert len(rows[0]["hosts"]) == MOST_HOSTS
    assert rows[0]["count"] == len(names)  # those that are seen are not forgotten
    assert rows[1]["text"].startswith(f"no {names[-1]} ")
