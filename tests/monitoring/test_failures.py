"""Failures: groups of calls, what each shows, and that memory and cost are bounded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farm.call import Call, ModelInfo, Operation, TensorInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.failing import Failure
from farm.errors import FarmError, InvalidOutput, ModelFailed, WorkerLost
from farm.monitoring.failures import (
    LONGEST_DETAIL,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_GROUPS,
    MOST_OF_A_KIND,
    SUMMARIES_PER_S,
    Failures,
)

X = (TensorInfo("x", (1,)),)
MODELS = {name: ModelInfo(name, X, X) for name in ("beam", "wave")}


def farm_of(models: Mapping[str, ModelInfo]) -> Dispatcher:
    dispatcher = Dispatcher([])
    dispatcher.expect(models.values())
    return dispatcher


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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
    clock = Clock()
    failures = Failures(farm_of(MODELS), clock)
    failures.failed(failure("no root in [0, 1]", x=1.0, detail="line 3"))
    clock.now = 1010.0
    last = failure("no root in [2, 3]", x=2.0, calls=4, worker="node2/2-b", client="")
    failures.failed(last)
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
    assert failures.with_details() == [{**row, "detail": "line 3"}]


def test_a_call_without_a_worker_has_none() -> None:
    failures = Failures(farm_of(MODELS), Clock())
    failures.failed(failure(worker=""))
    assert failures.snapshot()[0]["worker"] is None


def test_other_reasons_are_other_groups_and_the_last_one_comes_first() -> None:
    failures = Failures(farm_of(MODELS), Clock())
    for each in (
        failure("no root in 1"),
        failure("no minimum"),
        failure("no root in 2", kind=InvalidOutput),
        failure("no root in 3", model="wave"),
        failure("no root in 4", operation=Operation.COST),
        failure("no root in 5"),
    ):
        failures.failed(each)
    rows = failures.snapshot()
    assert [(row["text"][-1], row["count"]) for row in rows] == [
        *(("1", 2), ("4", 1), ("3", 1), ("2", 1), ("m", 1))
    ]
    assert len({row["id"] for row in rows}) == len(rows)


def test_losses_of_one_kind_are_one_group_whatever_happened_to_the_call() -> None:
    failures = Failures(farm_of(MODELS), Clock())
    for worker, story in (("n1/1-a", "queued 0.1 s"), ("n2/2-b", "queued 3 s, lost with n1/1-a")):
        text = f"worker {worker} was killed: time limit of 2 s; what happened: {story}"
        failures.failed(failure(text, kind=WorkerLost, worker=worker))
    (row,) = failures.snapshot()
    assert row["count"] == 2


def test_the_id_of_a_group_is_the_same_in_another_farm() -> None:
    ids = set()
    for text in ("no root in 1", "no root in 2"):
        failures = Failures(farm_of(MODELS), Clock())
        failures.failed(failure(text))
        ids.add(failures.snapshot()[0]["id"])
    assert len(ids) == 1


def test_memory_is_bounded_whatever_the_texts() -> None:
    failures = Failures(farm_of(MODELS), Clock())
    letters = "abcdefghijklmnopqrst"
    words = [a + b + c for a in letters for b in letters for c in "xyz"]
    kinds = list(FarmError.kinds.values())
    for number, word in enumerate(words):
        kind = kinds[number % len(kinds)]
        text = f"{word} {'long ' * 1000}"
        failures.failed(failure(text, kind=kind, detail=text * 2, worker=text, client=text))
    rows = failures.snapshot()
    assert len(rows) == MOST_GROUPS
    assert rows[0]["text"].startswith(words[-1])
    assert max(len(row["text"]) for row in rows) == LONGEST_TEXT
    assert max(len(row["client"]) for row in rows) == LONGEST_NAME
    assert max(len(row["worker"]) for row in rows) == LONGEST_NAME
    assert len(failures.with_details()[0]["detail"]) == LONGEST_DETAIL


def test_one_model_whose_texts_all_differ_does_not_crowd_out_others() -> None:
    failures = Failures(farm_of(MODELS), Clock())
    failures.failed(failure("no root", model="wave"))
    letters = "abcdefghijklmnopqrst"
    for word in (a + b for a in letters for b in letters):
        failures.failed(failure(word))
    rows = failures.snapshot()
    assert [row["text"] for row in rows if row["model"] == "wave"] == ["no root"]
    assert len(rows) == MOST_OF_A_KIND + 1
    assert rows[0]["text"] == "tt"


def test_the_group_that_is_forgotten_was_seen_longest_ago() -> None:
    failures = Failures(farm_of(MODELS), Clock())
    letters = "abcdefghij"
    words = [a + b for a in letters for b in letters][: MOST_OF_A_KIND + 1]
    for word in words[:-1]:
        failures.failed(failure(word))
    failures.failed(failure(words[0]))
    failures.failed(failure(words[-1]))
    kept = {row["text"] for row in failures.snapshot()}
    assert kept == set(words) - {words[1]}


def test_summaries_of_inputs_are_rare_when_failures_are_frequent() -> None:
    clock = Clock()
    failures = Failures(farm_of(MODELS), clock)
    for x in range(1000):
        failures.failed(failure(x=float(x)))
    assert failures.snapshot()[0]["inputs"] == "x = [0.0]"
    clock.now += 1.0
    failures.failed(failure(x=7.0))
    assert failures.snapshot()[0]["inputs"] == "x = [7.0]"


def test_the_inputs_are_those_of_the_call_that_the_text_is_about() -> None:
    clock = Clock()
    failures = Failures(farm_of(MODELS), clock)
    for x in range(3):
        clock.now += 0.4
        failures.failed(
            failure(
                f"no root at {x}", x=float(x), worker=f"n/{x}", client=f"c{x}", detail=f"line {x}"
            )
        )
    (row,) = failures.with_details()
    assert row["count"] == 3
    assert row["last"] == clock.now
    shown = [row[key] for key in ("text", "inputs", "worker", "client", "detail")]
    assert shown == ["no root at 0", "x = [0.0]", "n/0", "c0", "line 0"]
    clock.now += 1.0
    failures.failed(failure("no root at 7", x=7.0))
    (row,) = failures.snapshot()
    assert (row["text"], row["inputs"]) == ("no root at 7", "x = [7.0]")


def test_summaries_of_all_groups_together_are_bounded() -> None:
    clock = Clock()
    failures = Failures(farm_of(MODELS), clock)
    letters = "abcdefghijklmnopqrst"
    kinds = list(FarmError.kinds.values())
    for number, word in enumerate(a + b for a in letters for b in letters):
        failures.failed(failure(word, kind=kinds[number % len(kinds)]))
        if number == SUMMARIES_PER_S - 1:
            assert {row["inputs"] for row in failures.snapshot()} == {"x = [1.0]"}
    assert failures.snapshot()[0]["inputs"] == ""
    clock.now += 1.0
    failures.failed(failure("tt", kind=kinds[399 % len(kinds)]))
    assert failures.snapshot()[0]["inputs"] == "x = [1.0]"
