"""The closed loop on a real dispatcher and journal: every point gets an outcome or an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from farm.call import Call, Hints, Result
from farm.errors import InvalidInput, ModelNotFound, WorkerLost
from farm.experiment.host import Experiments
from farm.experiment.loop import pacing
from farm.experiment.loop.evaluators import Around
from farm.experiment.loop.progress import LoopOptions
from farm.experiment.loop.run import FAILURES_IN_A_ROW, ClosedLoop
from farm.experiment.state.events import Asked, Event, Failed, RunPhase, RunState, Told
from farm.experiment.state.journal import read_journal
from tests.experiment.subjects import Bowl, asked, config_of, dispatching, hosting, set_up
from tests.support.coroutines import until

TWO = (
    "[sobol]\ngenerator = SobolGenerator\nmin_asks = 6\n"
    "[more]\ngenerator = RandomGenerator\nmin_asks = 5\n"
)


E = TypeVar("E", bound=Event)


def events_of(journal: Path, kind: type[E]) -> list[E]:
    return [event for event in read_journal(journal) if isinstance(event, kind)]


async def ran(host: Experiments, number: int, farm: object, **options: int) -> ClosedLoop:
    run = ClosedLoop(host, number, farm, LoopOptions(**options))  # type: ignore[arg-type]  # callers pass valid options
    await run.begin()
    await run.go()
    return run


async def test_it_evaluates_all_points_of_all_strategies(tmp_path: Path) -> None:
    bowl, journal = Bowl(), tmp_path / "e.db"
    async with hosting(journal) as host, dispatching(bowl, 2) as farm:
        _, experiment = await set_up(host, config_of(TWO, names="sobol, more"))
        run = await ran(host, 0, farm)
        experiment.check()
        assert experiment.finished
        assert (experiment.loop.phase, experiment.loop.why) == (
            RunPhase.ENDED,
            "the experiment is finished",
        )
        assert experiment.told == experiment.loop.evaluations == len(bowl.seen)
        assert not experiment.loop.evaluating
        assert (run.now().told, run.now().places) == (experiment.told, 2)
    told = events_of(journal, Told)
    for event in told:
        x, y = event.points[0, 0]
        assert event.outcomes.item() == pytest.approx(-((x - 0.3) ** 2) - (y - 0.7) ** 2)
        assert event.extra["worker"]
    assert sorted(event.points[0, 0, 0] for event in told) == sorted(bowl.seen)


async def test_points_of_one_place_are_those_of_a_client_that_asks(tmp_path: Path) -> None:
    config = config_of()
    async with hosting(tmp_path / "e.db") as host, dispatching(Bowl(), 1) as farm:
        await set_up(host, config)
        await ran(host, 0, farm, in_flight=1)
    async with hosting(tmp_path / "f.db") as host:
        session, _ = await set_up(host, config)
        by_client = (await asked(host, session, "ask", num_points=8))["config"]["x"]
    of_loop = events_of(tmp_path / "e.db", Asked)
    assert [x for e in of_loop for x in e.points[:, 0, 0].tolist()] == by_client


async def test_the_budget_ends_it(tmp_path: Path) -> None:
    forever = "[sobol]\ngenerator = SobolGenerator\nrun_indefinitely = true\n"
    async with hosting(tmp_path / "e.db") as host, dispatching(Bowl(), 2) as farm:
        _, experiment = await set_up(host, config_of(forever, {"budget": 7}))
        await ran(host, 0, farm)
        assert experiment.told == 7
        assert experiment.loop.why == "the budget of 7 evaluations is spent"
        await ran(host, 0, farm, budget=9)
        assert experiment.told == 9
        await set_up(host, config_of(forever))
        with pytest.raises(InvalidInput, match=r"runs indefinitely.*budget"):
            ClosedLoop(host, 1, farm)
        await set_up(host, config_of(forever, {"max_time": 5}))
        ClosedLoop(host, 2, farm)


async def test_a_model_that_raises_for_part_of_its_domain(tmp_path: Path) -> None:
    """Points beyond the edge are recorded with their error, and others take their places."""
    config = config_of(
        "[sobol]\ngenerator = SobolGenerator\nmin_total_tells = 12\n", {"retries": 2}
    )
    async with hosting(tmp_path / "e.db") as host, dispatching(Bowl(edge=0.5), 2) as farm:
        _, experiment = await set_up(host, config)
        await ran(host, 0, farm)
        assert experiment.finished
        assert experiment.modelled >= 12
        failed = events_of(tmp_path / "e.db", Failed)
        assert experiment.loop.failed == len(failed) > 0
        assert {event.attempts for event in failed} == {3}
        assert all("beyond the edge" in e.error and "ModelFailed" in e.error for e in failed)
        assert experiment.loop.evaluations == experiment.told + experiment.loop.failed


async def test_an_evaluation_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    bowl = Bowl()
    bowl.flaky = {2}
    async with hosting(tmp_path / "e.db") as host, dispatching(bowl, 1) as farm:
        _, experiment = await set_up(host, config_of(farm={"retries": 1}))
        await ran(host, 0, farm)
        assert (experiment.told, experiment.loop.failed, len(bowl.seen)) == (8, 0, 9)
    told = events_of(tmp_path / "e.db", Told)
    assert [e.extra.get("attempts", 1) for e in told].count(2) == 1


async def test_all_points_of_an_experiment_are_one_caller(tmp_path: Path) -> None:
    callers: list[tuple[str, str | None]] = []

    class Listening(Around):
        async def submit(self, call: Call, hints: Hints) -> Result:
            callers.append((hints.client, hints.chain))
            return await super().submit(call, hints)

    async with hosting(tmp_path / "e.db") as host, dispatching(Bowl(), 2) as farm:
        await set_up(host, config_of())
        await ran(host, 0, Listening(farm._backend))
    assert len(callers) > 1
    assert set(callers) == {("experiment 0", "")}


async def test_a_point_that_ends_workers_is_not_tried_again(tmp_path: Path) -> None:
    """The farm has already tried it on several workers."""

    class Deadly(Around):
        async def submit(self, call: Call, hints: Hints) -> Result:
            if float(call.inputs[0][0]) > 0.5:
                raise WorkerLost("4 workers died with it")
            return await super().submit(call, hints)

    async with hosting(tmp_path / "e.db") as host, dispatching(Bowl(), 1) as farm:
        _, experiment = await set_up(host, config_of(farm={"retries": 5}))
        await ran(host, 0, Deadly(farm._backend))
        assert experiment.loop.failed > 0
    failed = events_of(tmp_path / "e.db", Failed)
    assert {event.attempts for event in failed} == {1}
    assert all("WorkerLost: 4 workers died" in event.error for event in failed)


class Nowhere(Bowl):
    def evaluate(self, inputs: object, config: object) -> float:
        return np.inf


@pytest.mark.parametrize(
    ("model", "last", "told"),
    [
        (Bowl(edge=-1), "beyond the edge", 0),
        (Nowhere(), "outcome_1 = inf", FAILURES_IN_A_ROW),
    ],
)
async def test_a_model_that_never_gives_a_number_pauses_it(
    tmp_path: Path, model: Bowl, last: str, told: int
) -> None:
    """Such points meet no rule: without a budget, the loop would never end."""
    options = {"retries": 0, "in_flight": 1}
    async with hosting(tmp_path / "e.db") as host, dispatching(model, 1) as farm:
        _, experiment = await set_up(host, config_of(farm=options))
        await ran(host, 0, farm)
        assert experiment.loop.phase is RunPhase.PAUSED
        many = f"{FAILURES_IN_A_ROW} points in a row failed or gave no number; the last: "
        assert experiment.loop.why.startswith(many)
        assert last in experiment.loop.why
        assert (experiment.modelled, experiment.told) == (0, told)


async def test_what_was_in_flight_is_evaluated_after_a_restart(tmp_path: Path) -> None:
    """The loop is cut off as by a kill: no event records its end."""
    bowl, journal = Bowl(held=True), tmp_path / "e.db"
    async with dispatching(bowl, 3) as farm:
        async with hosting(journal) as host:
            await set_up(host, config_of())
            run = ClosedLoop(host, 0, farm)
            await run.begin()
            going = asyncio.create_task(run.go())
            await until(lambda: len(bowl.seen) == 3)
            going.cancel()
            await asyncio.wait([going])
        bowl.gate.set()
        async with hosting(journal) as host:
            experiment = host.experiments[0]
            assert experiment.loop.phase is RunPhase.RUNNING
            assert len(experiment.loop.evaluating) >= 3
            await ran(host, 0, farm)
            assert experiment.told == experiment.loop.evaluations == 8
    ids = [e.ids[0] for e in events_of(journal, Told)]
    assert sorted(i for i in ids if i is not None) == list(range(8))
    assert len(events_of(journal, RunState)) == 3


async def test_a_client_asks_and_finishes_meanwhile(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    config = config_of("[sobol]\ngenerator = SobolGenerator\nmin_asks = 1000\n")
    async with hosting(tmp_path / "e.db") as host, dispatching(bowl, 2) as farm:
        session, experiment = await set_up(host, config)
        going = asyncio.create_task(ran(host, 0, farm))
        await until(lambda: len(bowl.seen) == 2)
        point = (await asked(host, session, "ask"))["config"]
        await asked(host, session, "tell", config=point, outcome=1.0)
        assert (await asked(host, session, "info"))["current_strat_data_pts"] == 1
        await asked(host, session, "finish_strategy")
        bowl.gate.set()
        await going
        assert experiment.finished
        assert experiment.told == experiment.loop.evaluations + 1


async def test_a_client_that_tells_the_points_of_the_loop(tmp_path: Path) -> None:
    """They are separate trials: the loop still evaluates and tells all of its points."""
    bowl, journal = Bowl(held=True), tmp_path / "e.db"
    listed = "[list]\ngenerator = ManualGenerator\n[ManualGenerator]\nshuffle = no\n"
    points = [[i / 10, i / 10] for i in range(6)]
    config = config_of(f"{listed}points = {points}\n", {"in_flight": 2}, names="list")
    async with hosting(journal) as host, dispatching(bowl, 1) as farm:
        session, experiment = await set_up(host, config)
        going = asyncio.create_task(ran(host, 0, farm))
        await until(lambda: len(experiment.loop.evaluating) == 2)
        x = [value for value, _ in points[:2]]
        await asked(host, session, "tell", config={"x": x, "y": x}, outcome=[1, 2])
        await asked(host, session, "tell", config={"x": 0, "y": 0}, outcome=3)
        assert len(experiment.loop.evaluating) == 2
        bowl.gate.set()
        await going
        assert experiment.loop.evaluations == 6
        assert experiment.told == 9
    ids = [id for e in events_of(journal, Told) for id in e.ids]
    assert sorted(id for id in ids if id is not None) == list(range(6))
    assert ids.count(None) == 3


async def test_a_model_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    async with hosting(tmp_path / "e.db") as host, dispatching(Bowl(), 1) as farm:
        for options, error in (
            ({"model": "ball"}, ModelNotFound),
            ({"outcome.outcome_1": "depth"}, InvalidInput),
            ({"input.z": "x"}, InvalidInput),
        ):
            _, experiment = await set_up(host, config_of(farm=options))
            with pytest.raises(error):
                await ClosedLoop(host, experiment.number, farm).begin()
            assert experiment.loop.phase is None


@pytest.mark.slow
async def test_points_fill_the_space_while_the_strategy_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The surrogate is blocked; the only worker does not wait for it, and the record shows that."""
    pytest.importorskip("botorch")
    monkeypatch.setattr(pacing, "WORTH", np.inf)  # the bowl takes no time
    released = asyncio.Event()

    class Slow(Experiments):
        async def execute(self, number, work):  # type: ignore[no-untyped-def]  # forwards all arguments
            if not work.filler and work.strategy == 1:
                await released.wait()
                work = replace(work, filler=True, asked=1000 + work.asked)  # in place of a fit
            return await super().execute(number, work)

    journal = tmp_path / "e.db"
    config = config_of(
        "[sobol]\ngenerator = SobolGenerator\nmin_asks = 1\n"
        "[learn]\ngenerator = OptimizeAcqfGenerator\nmodel = GPRegressionModel\n"
        "acqf = qLogNoisyExpectedImprovement\nmin_total_tells = 12\n",
        {"in_flight": 1, "budget": 12},
        names="sobol, learn",
    )
    async with hosting(journal, Slow) as host, dispatching(Bowl(), 1) as farm:
        _, experiment = await set_up(host, config)
        run = ClosedLoop(host, 0, farm)
        await run.begin()
        going = asyncio.create_task(run.go())
        await until(lambda: experiment.told >= 5)
        released.set()
        await going
        assert run.now().fillers > 0
    events = events_of(journal, Asked)
    fillers = [e for e in events if e.filler]
    assert sum(len(e.ids) for e in fillers) == run.now().fillers
    assert all("was busy" in e.note for e in fillers)
    points = np.concatenate([e.points for e in events])[:, 0]
    assert len(np.unique(points, axis=0)) == len(points)


async def test_a_list_is_evaluated_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that waits for the next point of a list gets no filling point."""
    monkeypatch.setattr(pacing, "WORTH", np.inf)
    monkeypatch.setattr(pacing, "IDLE_SHARE", 0.0)  # a filling point would be taken at once
    runs: list[ClosedLoop] = []
    fillers: list[int] = []

    class Slow(Experiments):
        async def execute(self, number, work):  # type: ignore[no-untyped-def]  # forwards all arguments
            if work.filler:
                fillers.append(work.count)
            elif work.asked:
                await until(lambda: not runs[0].now().in_flight)
                for _ in range(100):  # until the loop has seen that its worker is free
                    await asyncio.sleep(0)
            return await super().execute(number, work)

    listed = [[i / 10, i / 10] for i in range(8)]
    config = config_of(
        f"[list]\ngenerator = ManualGenerator\n[ManualGenerator]\npoints = {listed}\n",
        {"in_flight": 1},
        names="list",
    )
    bowl = Bowl()
    async with hosting(tmp_path / "e.db", Slow) as host, dispatching(bowl, 1) as farm:
        await set_up(host, config)
        runs.append(ClosedLoop(host, 0, farm))
        await runs[0].begin()
        await runs[0].go()
    assert sorted(bowl.seen) == [x for x, _ in listed]
    assert not fillers


async def test_points_that_end_together_are_recorded_together(tmp_path: Path) -> None:
    """While a slow disk writes, finished points gather for one further write."""
    records: list[int] = []
    runs: list[ClosedLoop] = []

    class Slow(Experiments):
        async def record(self, number, events):  # type: ignore[no-untyped-def]
            if not records and runs and runs[0]._journal._untold == [] and bowl.gate.is_set():
                await until(lambda: len(runs[0]._journal._untold) == 7)
            kept = await super().record(number, events)
            records.append(sum(isinstance(event, Told) for event in kept))
            return kept

    bowl = Bowl(held=True)
    async with hosting(tmp_path / "e.db", Slow) as host, dispatching(bowl, 8) as farm:
        _, experiment = await set_up(host, config_of(farm={"in_flight": 8}))
        run = ClosedLoop(host, 0, farm)
        await run.begin()
        going = asyncio.create_task(run.go())
        await until(lambda: len(bowl.seen) == 8)
        records.clear()
        runs.append(run)
        bowl.gate.set()
        await going
        assert experiment.told == 8
        assert records == [1, 7, 0]
