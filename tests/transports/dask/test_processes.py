"""What is known of a Dask cluster's workers; real ones are in test_cluster.py."""

from __future__ import annotations

from farm.transports.dask.processes import Processes
from farm.wire.usage import Used

A, B = "tcp://a:1", "tcp://b:1"


def described(**resources: dict[str, float]) -> dict[str, dict[str, object]]:
    return {
        f"tcp://{name}:1": {"name": name, "host": f"10.0.0.{i}", "resources": held}
        for i, (name, held) in enumerate(resources.items())
    }


def test_without_needs_each_thread_is_a_slot() -> None:
    processes = Processes()
    processes.update({A: 2, B: 4})
    assert processes.slots == {A: 2, B: 4}
    assert processes.strangers({A: 2, B: 4}) == {A, B}
    processes.learn(described(a={}, b={}))
    assert processes.strangers({A: 2, B: 4}) == set()
    assert processes.lacking() == ""


def test_the_scarcest_resource_limits_the_slots() -> None:
    processes = Processes({"GPU": 1, "MEM": 8})
    processes.learn(described(a={"GPU": 4, "MEM": 20}, b={"GPU": 1}))
    processes.update({A: 8, B: 8})
    assert processes.slots == {A: 2}
    assert [row["state"] for row in processes.rows()] == ["open", "lacks resources"]
    processes.update({A: 1})
    assert processes.slots == {A: 1}


def test_what_all_lack_is_told_unless_they_cannot_load_the_models_anyway() -> None:
    processes = Processes({"GPU": 0.5})
    assert processes.lacking() == ""
    processes.update({A: 2})
    assert processes.lacking().startswith("none of 1 Dask workers has GPU=0.5")
    processes.exclude(A)
    assert processes.lacking() == ""


def test_a_worker_that_cannot_load_the_models_gets_nothing_until_it_is_gone() -> None:
    processes = Processes()
    processes.learn(described(a={}, b={}))
    processes.update({A: 2, B: 4})
    processes.exclude(A)
    assert processes.slots == {B: 4}
    processes.update({A: 2, B: 4})
    assert processes.slots == {B: 4}
    assert [row["state"] for row in processes.rows()] == ["cannot load the models", "open"]
    processes.update({B: 4})
    processes.update({A: 2, B: 4})
    assert processes.slots == {A: 2, B: 4}


def test_a_row_counts_calls_and_forgets_those_of_a_worker_that_left() -> None:
    processes = Processes()
    processes.learn(described(a={}))
    processes.update({A: 2}, {A: 1, "tcp://other:1": 7})
    processes.done[A] += 5
    (row,) = processes.rows()
    assert row == {
        "address": A,
        "name": "a",
        "host": "10.0.0.0",
        "threads": 2,
        "slots": 2,
        "state": "open",
        "in_flight": 1,
        "done": 5,
        "memory_bytes": None,
        "processor": None,
    }
    processes.update({})
    processes.update({A: 2})
    assert [row["done"] for row in processes.rows()] == [0]


def test_what_the_workers_use_is_shown_and_added_up() -> None:
    processes = Processes()
    assert processes.used() == Used()
    told: dict[str, dict[str, object]] = described(a={}, b={}, c={})
    told[A]["metrics"] = {"memory": 2**30, "cpu": 150.0}
    told[B]["metrics"] = {"memory": 2**20, "cpu": 50.0}
    processes.learn(told)
    processes.update({A: 1, B: 1})
    rows = processes.rows()
    assert [row["memory_bytes"] for row in rows] == [2**30, 2**20]
    assert [row["processor"] for row in rows] == [1.5, 0.5]
    assert processes.used() == Used(2**30 + 2**20, 2.0)
