"""Loops started, paused and queried by messages, and resumed after a restart."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from farm.call import Call, Hints, Result
from farm.errors import InvalidInput, ModelNotFound, UnsupportedFeature
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import Around
from farm.experiment.loop.progress import LoopOptions
from farm.experiment.loop.run import ClosedLoop
from farm.experiment.loop.runs import Runs, reported
from farm.experiment.state.events import RunPhase
from tests.experiment.subjects import Bowl, asked, config_of, dispatching, hosting, set_up
from tests.support.coroutines import until


@asynccontextmanager
async def running(journal: Path, farm: Around) -> AsyncIterator[Experiments]:
    async with hosting(journal) as host:
        runs = Runs(host, farm)
        runs.start()
        try:
            yield host
        finally:
            await runs.stop()


async def test_run_status_and_pause(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 2) as farm, running(tmp_path / "e.db", farm) as host:
        session, experiment = await set_up(host, config_of())
        assert (await asked(host, session, "status"))["run"] is None
        with pytest.raises(InvalidInput, match="it cannot be paused"):
            await asked(host, session, "pause")
        answer = await asked(host, session, "run", in_flight=2, budget=6)
        assert answer["run"] == "running"
        again = await asked(host, session, "run")
        assert (again["loop"]["places"], again["loop"]["budget"]) == (2, 6)
        await until(lambda: len(bowl.seen) == 2)
        status = await asked(host, host.session(), "status", strat_id=0)
        assert (status["loop"]["in_flight"], status["told"]) == (2, 0)
        await asked(host, session, "pause")
        bowl.gate.set()
        await until(lambda: experiment.loop.phase is RunPhase.PAUSED)
        assert experiment.told == 2
        await asked(host, session, "run", budget=6)
        await until(lambda: experiment.loop.phase is RunPhase.ENDED)
        assert experiment.told == 6
        answer = await asked(host, session, "status")
        assert (answer["run"], "loop" in answer) == ("ended", False)


async def test_a_pause_is_taken_back_while_points_are_in_flight(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 2) as farm, running(tmp_path / "e.db", farm) as host:
        session, experiment = await set_up(host, config_of())
        await asked(host, session, "run")
        await until(lambda: len(bowl.seen) == 2)
        await asked(host, session, "pause")
        await asked(host, session, "run")
        bowl.gate.set()
        await until(lambda: experiment.loop.phase is RunPhase.ENDED)
        assert experiment.told == 8


async def test_a_loop_that_runs_keeps_what_it_began_with(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 2) as farm, running(tmp_path / "e.db", farm) as host:
        session, experiment = await set_up(host, config_of())
        await asked(host, session, "run", in_flight=1)
        await asked(host, session, "pause")
        with pytest.raises(InvalidInput, match="runs already, with in_flight = 1; to run it with"):
            await asked(host, session, "run", in_flight=2)
        with pytest.raises(InvalidInput, match=r"runs already, as its configuration says;.*wait"):
            await asked(host, session, "run", in_flight=1, budget=3)
        bowl.gate.set()
        await until(
            lambda: experiment.loop.phase is RunPhase.PAUSED
        )  # refused messages change nothing
        await asked(host, session, "run", in_flight=2, budget=3)
        await until(lambda: experiment.loop.phase is RunPhase.ENDED)
        assert experiment.told == 3


class Faulty(Around):
    """A farm with one call that raises an error other than FarmError."""

    faults = 1

    async def submit(self, call: Call, hints: Hints) -> Result:
        self.faults -= 1
        if self.faults == 0:
            raise RuntimeError("nobody thought of this")
        return await super().submit(call, hints)


async def test_a_loop_that_fails_is_paused_and_can_go_on(tmp_path: Path) -> None:
    async with (
        dispatching(Bowl(), 2) as farm,
        running(tmp_path / "e.db", Faulty(farm._backend)) as host,
    ):
        session, experiment = await set_up(host, config_of())
        await asked(host, session, "run")
        await until(lambda: experiment.loop.phase is RunPhase.PAUSED)
        assert "see its log" in experiment.loop.why
        await asked(host, session, "run")
        await until(lambda: experiment.loop.phase is RunPhase.ENDED)
        assert experiment.told == 8


async def test_two_experiments_run_at_once(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 4) as farm, running(tmp_path / "e.db", farm) as host:
        for _ in range(2):
            session, _ = await set_up(host, config_of())
            await asked(host, session, "run", in_flight=2)
        await until(lambda: len(bowl.seen) == 4)
        bowl.gate.set()
        await until(lambda: all(e.loop.phase is RunPhase.ENDED for e in host.experiments.values()))
        assert [e.told for e in host.experiments.values()] == [8, 8]


async def test_a_server_that_starts_again_goes_on_as_it_was_told(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 2) as farm:
        async with running(tmp_path / "e.db", farm) as host:
            session, _ = await set_up(host, config_of())
            await asked(host, session, "run", in_flight=2, budget=5)
            await until(lambda: len(bowl.seen) == 2)
        bowl.gate.set()
        async with running(tmp_path / "e.db", farm) as host:
            experiment = host.experiments[0]
            await until(lambda: experiment.loop.phase is RunPhase.ENDED)
            assert experiment.told == experiment.loop.evaluations == 5


async def test_a_farm_without_the_model_pauses_it_and_says_why(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 1) as farm, running(tmp_path / "e.db", farm) as host:
        session, _ = await set_up(host, config_of())
        await asked(host, session, "run")
        await until(lambda: bowl.seen)
        bowl.gate.set()
    other = Bowl()
    other.name = "ball"
    async with dispatching(other, 1) as farm, running(tmp_path / "e.db", farm) as host:
        experiment = host.experiments[0]
        await until(lambda: experiment.loop.phase is RunPhase.PAUSED)
        assert "bowl" in experiment.loop.why
        session = host.session()
        await asked(host, session, "resume", strat_id=0)
        with pytest.raises(ModelNotFound):
            await asked(host, session, "run")
        assert "loop" not in await asked(host, session, "status")


async def test_the_loop_of_a_clients_configuration_opens_none_of_its_files(tmp_path: Path) -> None:
    """The file is a pipe: whoever opens it to read waits, and is then seen by the test."""
    pipe = tmp_path / "week.h5"
    os.mkfifo(pipe)
    files = {"seed_data": f"[{pipe}, week.h5]"}
    async with dispatching(Bowl(), 2) as farm, running(tmp_path / "e.db", farm) as host:
        session, experiment = await set_up(host, config_of(farm=files))
        await asked(host, session, "run")
        await until(lambda: experiment.loop.phase is RunPhase.ENDED)
        assert experiment.told == 8
        assert len(experiment.data(0).x) == 8
        (note,) = (await asked(host, session, "info"))["notes"]
        assert "[farm] seed_data is ignored" in note
    with pytest.raises(OSError, match="No such device") as caught:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    assert caught.value.errno == errno.ENXIO, "nobody reads it"


# Reports to the farm


async def progress(farm: Around) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = await farm._backend.questions.ask("progress", {})
    return [row for row in rows if row["kind"] == "experiment"]


async def test_the_farm_shows_an_experiment_until_after_its_end(tmp_path: Path) -> None:
    bowl = Bowl(held=True)
    async with dispatching(bowl, 2) as farm, hosting(tmp_path / "e.db") as host:
        _, experiment = await set_up(host, config_of())
        loop = ClosedLoop(host, experiment.number, farm, LoopOptions(budget=6))
        await loop.begin()
        async with reported(loop, host, experiment.number, farm):
            await until(lambda: farm._backend.snapshot()["progress"])
            (row,) = await progress(farm)
            assert (row["state"], row["done"], row["total"]) == ("running", 0, 6)
            assert row["client"] == f"experiment {experiment.number}"
            bowl.gate.set()
            await loop.go()
        (row,) = await progress(farm)
        assert (row["state"], row["done"], row["failed"], row["total"]) == ("ended", 6, 0, 6)
        assert row["ends_in_s"] is None
        assert row["calls_per_s"] > 0.0


async def test_a_loop_that_is_stopped_has_ended_for_the_farm(tmp_path: Path) -> None:
    async with dispatching(Bowl(), 1) as farm, hosting(tmp_path / "e.db") as host:
        _, experiment = await set_up(host, config_of())
        loop = ClosedLoop(host, experiment.number, farm, LoopOptions(budget=6))
        await loop.begin()
        async with reported(loop, host, experiment.number, farm):
            pass
        (row,) = await progress(farm)
        assert (row["state"], row["done"]) == ("stopped", 0)


class Deaf(Around):
    """A farm that takes no reports."""

    error: Exception
    told = 0

    async def report_progress(self, kind: str, name: str, **values: Any) -> None:
        self.told += 1
        raise self.error


@pytest.mark.parametrize(
    "error", [UnsupportedFeature("no such question"), RuntimeError("nobody thought of this")]
)
async def test_a_loop_goes_on_where_nobody_hears_of_it(tmp_path: Path, error: Exception) -> None:
    async with dispatching(Bowl(), 1) as farm, hosting(tmp_path / "e.db") as host:
        _, experiment = await set_up(host, config_of())
        loop = ClosedLoop(host, experiment.number, farm, LoopOptions(budget=2))
        await loop.begin()
        deaf = Deaf(farm._backend)
        deaf.error = error
        async with reported(loop, host, experiment.number, deaf):
            ended = await loop.go()
        assert (ended.told, await progress(farm)) == (2, [])
        assert deaf.told >= 1
