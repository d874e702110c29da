"""Which workers are slow or sick, and that healthy ones are not."""

from __future__ import annotations

from typing import Any

from farm.monitoring.health import MANY_RESTARTS, troubles


def row(
    p50: float = 1.0,
    p99: float = 2.0,
    *,
    count: int = 10,
    running_s: float | None = None,
    done: int = 100,
    failed: int = 0,
    restarts: int = 0,
    models: tuple[str, ...] = ("m",),
) -> dict[str, Any]:
    times = {"p50": p50, "p99": p99, "count": count} if count else {"p50": None, "count": 0}
    return {
        "models": list(models),
        "running_s": running_s,
        "run_times_s": {"p90": None, "p99": None, **times},
        "done": done,
        "failed": failed,
        "restarts": restarts,
    }


HEALTHY = [row(1.0), row(1.2), row(0.9)]


def test_workers_that_are_alike_are_healthy() -> None:
    assert troubles([]) == []
    assert troubles([*HEALTHY, row(count=0, done=0)]) == [[]] * 4


def test_a_call_that_runs_much_longer_than_others_did_is_shown() -> None:
    assert troubles([*HEALTHY, row(running_s=19.0)])[3] == []
    # A new worker is compared as well: it has no run times of its own.
    stuck = troubles([*HEALTHY, row(count=0, done=0, running_s=30.0)])
    assert stuck == [[], [], [], ["its call runs 15 times as long as others did"]]


def test_a_short_call_is_not_called_stuck() -> None:
    fast = [row(1e-3, 1e-3)] * 3
    assert troubles([*fast, row(1e-3, 1e-3, running_s=5.0)])[3] == []
    assert troubles([*fast, row(1e-3, 1e-3, running_s=11.0)])[3] != []


def test_a_slow_worker_is_shown_among_others_of_its_models() -> None:
    found = troubles([*HEALTHY, row(3.0), row(50.0, models=("other",))])
    assert found[:3] == [[]] * 3
    assert found[3] == ["its runs take 2.7 times as long as on other workers"]
    assert found[4] == []  # there is nothing to compare it with


def test_a_slow_worker_with_few_runs_is_not() -> None:
    assert troubles([*HEALTHY, row(3.0, count=4)])[3] == []
    assert troubles([row(1.0), row(3.0)])[1] == []  # which of two is the slow one?


def test_a_worker_that_fails_more_often_than_others_is_shown() -> None:
    others = [row(done=90, failed=2) for _ in range(3)]
    assert troubles([*others, row(done=90, failed=4)])[3] == []
    assert troubles([*others, row(done=5, failed=5)])[3] == ["fails 50% of its calls, others 2%"]
    # A model that fails for half of its inputs makes no worker sick.
    assert troubles([row(done=50, failed=50)] * 4) == [[]] * 4


def test_a_worker_that_was_restarted_often_is_shown() -> None:
    found = troubles([*HEALTHY, row(restarts=MANY_RESTARTS)])
    assert found[3] == [f"was started again {MANY_RESTARTS} times"]
