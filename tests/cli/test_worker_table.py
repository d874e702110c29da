"""Workers as tables: few, and very many."""

from __future__ import annotations

from typing import Any

from farm.cli.worker_table import EACH_SHOWN, HOSTS_SHOWN, worker_tables
from tests.cli.conftest import rendered


def row(name: str = "n1/1-a", **more: Any) -> dict[str, Any]:
    plain = {
        "name": name,
        "host": name.partition("/")[0],
        "models": ["beam"],
        "device": "",
        "phase": "open",
        "slots": 1,
        "in_flight": 0,
        "running_s": None,
        "run_times_s": {"p50": None, "p90": None, "p99": None, "count": 0},
        "done": 0,
        "failed": 0,
        "memory_bytes": None,
        "processor": None,
        "restarts": 0,
        "trouble": [],
    }
    return {**plain, **more}


def lines(rows: list[dict[str, Any]], width: int = 160) -> list[str]:
    shown = rendered(*worker_tables(rows), width=width)
    return [" ".join(line.split()) for line in shown.splitlines()]


TIMES = {"p50": 0.5, "p90": 0.7, "p99": 2.0, "count": 9}


def test_a_few_workers_have_a_row_each_those_with_trouble_first() -> None:
    busy = row("n1/1-a", running_s=3.0, in_flight=1, run_times_s=TIMES, done=9)
    used = row("n1/2-b", memory_bytes=2**30, processor=0.97, failed=2, restarts=3)
    sick = row("n2/3-c", trouble=["was started again 3 times"], phase="shut")
    assert lines([busy, used, sick]) == [
        "worker busy for p50 p99 done failed memory cpu restarts",
        "n2/3-c idle, takes no calls 0 0 0",
        "n1/1-a 3 s 500 ms 2 s 9 0 0",
        "n1/2-b idle 0 2 1 GiB 0.97 3",
        "n2/3-c: was started again 3 times",
    ]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert lines([row()]) == ["worker busy for p50 p99 done", "n1/1-a idle 0"]
    assert lines([]) == ["no workers"]
    assert lines([row(), row(models=["a", "b"])])[2] == "n1/1-a a, b idle 0"


def test_all_of_them_fit_on_a_terminal() -> None:
    full = row("node3/44123-a1b2", memory_bytes=10**9, processor=0.97, failed=1, restarts=9)
    full |= {"running_s": 12.3, "run_times_s": TIMES, "done": 300}
    assert "node3/44123-a1b2 12.3 s 500 ms 2 s 300 1 954 MiB 0.97 9" in lines([full], width=80)


def test_a_cluster_that_is_one_worker_shows_its_slots() -> None:
    assert "5 of 8 busy" in lines([row(slots=8, in_flight=5, running_s=1.0)])[1]


def test_many_workers_are_shown_by_host_after_those_with_trouble() -> None:
    rows = [
        row(f"n{host}/{i}-a", memory_bytes=2**28, processor=0.5, done=10, run_times_s=TIMES)
        for host in range(10)
        for i in range(100)
    ]
    rows[555] |= {"trouble": ["its call runs 40 times as long as others did"], "running_s": 80.0}
    shown = lines(rows)
    assert shown[:5] == [
        "worker busy for p50 p99 done memory cpu",
        "n5/55-a 80 s 500 ms 2 s 10 256 MiB 0.50",
        "n5/55-a: its call runs 40 times as long as others did",
        "host workers busy trouble longest p50 done memory cpu",
        "n5 100 1 1 80 s 500 ms 1000 25 GiB 50.0",  # the host with trouble is first
    ]
    assert shown[5] == "n0 100 0 500 ms 1000 25 GiB 50.0"
    assert len(shown) == 4 + 10
    assert lines(rows, width=80) == shown, "a line for each also in a narrow terminal"


def test_a_farm_in_which_all_are_sick_stays_readable() -> None:
    count = 1000
    rows = [row(f"n{i}/1-a", trouble=["was started again 9 times"]) for i in range(count)]
    shown = lines(rows)
    assert f"and {count - EACH_SHOWN} more workers with trouble; --json lists them" in shown
    assert f"and {count - HOSTS_SHOWN} more hosts; --json lists all workers" in shown
    assert len(shown) < 100


def test_nothing_that_a_worker_says_changes_the_terminal() -> None:
    shown = lines([row("\x1b[31mn"), row(trouble=["[b]\x07"], models=["\x1b[2J"])])
    assert any(r"\x1b[31mn" in line for line in shown)
    assert any(r"\x1b[2J" in line for line in shown)
    assert r"n1/1-a: [b]\x07" in shown
