"""A real farm and samplers of several chains: what its status shows, and how they share workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.client import Client
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import Served, run_farm, serving
from tests.support.time_limits import scaled

MODEL = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def gate(x):
    "Ends when there is a file of this number."
    while not os.path.exists(f"open-{int(x[0])}"):
        time.sleep(0.002)
    return x

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def logged(x):
    "A run of 1 makes a file, and one of 0 waits until there is none."
    with open("ran", "a") as file:
        file.write(f"{int(x[0])}\\n")
    if x[0] == 1:
        open("between", "w").close()
    while x[0] < 0 and not os.path.exists("open-0") or x[0] == 0 and os.path.exists("between"):
        time.sleep(0.002)
    time.sleep(0.02)
    return x
"""


class Farm:
    """`farm serve` of one model, in a folder of its own."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.folder = folder

    def open(self, number: int) -> None:
        (self.folder / f"open-{number}").touch()

    def ran(self) -> list[int]:
        return [int(line) for line in (self.folder / "ran").read_text().split()]


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Farm]:
    model, workers = request.param
    (tmp_path / "m.py").write_text(MODEL)
    with serving(tmp_path, f"m.py:{model}", "--workers", f"{workers}") as served:
        served.wait_for_workers(workers)
        yield Farm(served, tmp_path)


COUNTS = ("done", "failed", "queued", "in_flight")


def chains(client: Client) -> dict[str, dict[str, Any]]:
    return {row["chain"]: row for row in client.status()["chains"]}


@pytest.mark.slow
@pytest.mark.parametrize("running", [("gate", 4)], indirect=True)
def test_four_chains_of_an_executor_are_shown_with_what_they_do(running: Farm) -> None:
    with farm.connect(running.served.folder, client="sampler") as client:
        model = client.model()

        def sample(i: int) -> None:
            with farm.chain(f"chain {i}"):
                for _ in range(i):
                    model([0.0])
                model([float(i)])

        running.open(0)
        with farm.Executor(4, chain="thread {i}") as pool:
            futures = [pool.submit(sample, i) for i in range(1, 5)]
            runs = {f"chain {i}": (i, 1) for i in range(1, 5)}

            def state() -> dict[str, tuple[int, int]]:
                return {
                    name: (row["done"], row["queued"] + row["in_flight"])
                    for name, row in chains(client).items()
                }

            wait_until(lambda: state() == runs)
            with farm.chain("chain 4"):
                more = [model.submit([0.0]) for _ in range(3)]
            wait_until(lambda: state() == {**runs, "chain 4": (4, 4)})
            rows = chains(client)
            assert {rows[f"chain {i}"]["in_flight"] for i in range(1, 4)} == {1}
            assert all(row["client"] == "sampler" for row in rows.values())
            assert all(0.0 < row["share"] < 1.0 for row in rows.values())
            assert all(row["calls_per_s"] > 0.0 for row in rows.values())
            for i in range(1, 5):
                running.open(i)
            for future in [*futures, *more]:
                future.result()
        assert state() == {f"chain {i}": (i + 1 + 3 * (i == 4), 0) for i in range(1, 5)}
        assert sum(row["share"] for row in chains(client).values()) == pytest.approx(1.0, rel=0.5)
    code, out, _ = run_farm("status", "--to", str(running.served.folder), cwd=running.folder)
    assert code == 0
    for i in range(1, 4):
        assert re.search(rf"sampler +chain {i} +0 +{i + 1} ", out), out


@pytest.mark.parametrize("running", [("gate", 1)], indirect=True)
def test_cancelled_and_failed_calls_are_no_longer_open(running: Farm) -> None:
    with farm.connect(running.served.folder, chain="mine") as client:
        model = client.model()
        future = model.submit([7.0])
        wait_until(lambda: chains(client)["mine"]["in_flight"] == 1)
        more = [model.submit([8.0]) for _ in range(5)]
        wait_until(lambda: chains(client)["mine"]["queued"] == 5)
        for waiting in more:
            waiting.cancel()
        wait_until(lambda: chains(client)["mine"]["queued"] == 0)
        running.open(7)
        future.result()
        with farm.connect(running.served.folder, chain="mine", deadline_s=scaled(0.2)) as hasty:
            assert isinstance(hasty.model().submit([9.0]).exception(), farm.FarmError)

        def counts() -> list[int]:
            return [chains(client)["mine"][key] for key in COUNTS]

        wait_until(lambda: counts() == [1, 1, 0, 0])
        running.open(9)


@pytest.mark.parametrize("running", [("logged", 1)], indirect=True)
def test_chains_that_are_clients_share_a_worker(running: Farm) -> None:
    """One chain has forty calls queued, the other makes one after another: they take turns."""
    with farm.connect(running.served.folder) as client:
        model = client.model()
        model.submit([-1.0])
        wait_until(lambda: bool(client.status()["queues"]))

        def many() -> None:
            for future in [model.submit([0.0]) for _ in range(40)]:
                future.result()

        def one_by_one() -> None:
            # The other chain gets no turns while this one has not asked for its next call.
            for _ in range(8):
                future = model.submit([1.0])
                (running.folder / "between").unlink(missing_ok=True)
                future.result()
            (running.folder / "between").unlink(missing_ok=True)

        with farm.Executor(2, client="chain {i}", chain="{i}") as pool:
            jobs = [pool.submit(many)]
            wait_until(lambda: queued(client) >= 40)
            jobs.append(pool.submit(one_by_one))
            wait_until(lambda: queued(client) >= 41)
            running.open(0)
            for job in jobs:
                job.result()
    ran = [number for number in running.ran() if number >= 0]
    assert sorted(ran) == [0] * 40 + [1] * 8
    last = max(i for i, number in enumerate(ran) if number)
    assert last < 30  # two turns for each of its calls would be 16; in order of arrival it is 47


@pytest.mark.parametrize("running", [("logged", 1)], indirect=True)
def test_a_client_of_three_chains_has_three_times_the_share_of_one(running: Farm) -> None:
    with (
        farm.connect(running.served.folder, client="sampler") as client,
        farm.connect(running.served.folder, client="other", chain="one") as other,
        farm.connect(running.served.folder, client="gate") as gate,  # is charged for its run
    ):
        model = client.model()
        futures = [gate.model().submit([-1.0])]
        wait_until(lambda: bool(client.status()["queues"]))
        for _ in range(20):
            for i in range(3):
                with farm.chain(f"chain {i}"):
                    futures.append(model.submit([2.0 + i]))
        futures += [other.model().submit([0.0]) for _ in range(60)]
        wait_until(lambda: queued(client) >= 120)
        running.open(0)
        for future in futures:
            future.result()
    first = [number for number in running.ran() if number >= 0][:48]
    assert 7 <= first.count(0) <= 18  # a quarter is 12; as a client like the other it has 24
    counts = [first.count(2 + i) for i in range(3)]
    assert max(counts) - min(counts) <= 1


def queued(client: Client) -> int:
    return sum(row["queued"] for row in client.status()["queues"])


@pytest.mark.slow
@pytest.mark.parametrize("running", [("gate", 1)], indirect=True)
def test_hostile_names_are_cut_and_harmless(running: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    running.open(0)
    names = [
        "<script>alert(1)</script>",
        "\x1b[2J\x1b]0;owned\x07",
        "two\nlines\r\x00",
        "\u202eesrever",
        "[red]markup[/red]",
        "long " * 1000,
        "\N{GREEK SMALL LETTER ETA} \N{PILE OF POO}",
        "{i} %s {0}",
    ]
    with farm.connect(running.served.folder, client="\x1b[31m") as client:
        model = client.model()
        for name in names:
            with farm.chain(name):
                model([0.0])
        assert set(chains(client)) == {name[:100] for name in names}
        assert client.status()["chains"][0]["client"] == "\x1b[31m"
    folder = str(running.served.folder)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run_farm("status", "--to", folder, cwd=running.folder)
    assert code == 0
    assert all(c.isprintable() or c == "\n" for c in out)
    for shown in (names[0], r"\x1b[2J", r"two\nlines\r\x00", r"\u202eesrever", names[4], "long l"):
        assert shown in out
    assert "long " * 7 + "long\N{HORIZONTAL ELLIPSIS}" in out
    code, out, _ = run_farm("status", "--json", "--to", folder, cwd=running.folder)
    assert {row["chain"] for row in json.loads(out)["chains"]} == {name[:100] for name in names}


def test_calls_that_the_record_answers_count_for_their_chain(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    (tmp_path / "open-0").touch()
    options = ["--workers", "1", "--record", "calls.record", "--reuse"]
    with serving(tmp_path, "m.py:gate", *options) as served:
        served.wait_for_workers(1)
        with farm.connect(served.folder) as client:
            model = client.model()
            for chain in ("first", "again", "again"):
                with farm.chain(chain):
                    model([0.0])
            model([0.0])  # without a name
            done = {"first": 1, "again": 2}
            wait_until(lambda: {name: r["done"] for name, r in chains(client).items()} == done)
            rows = chains(client)
            assert rows["first"]["share"] == 1.0
            assert rows["again"]["run_time_s"] == 0.0
            assert rows["again"]["last_answer_s"] is not None
