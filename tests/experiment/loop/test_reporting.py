"""The progress of a loop, as the farm shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.errors import UnsupportedFeature
from farm.experiment.loop.evaluators import Around
from farm.experiment.loop.progress import LoopOptions
from farm.experiment.loop.reporting import reported
from farm.experiment.loop.run import ClosedLoop
from tests.experiment.subjects import Bowl, config_of, dispatching, hosting, set_up
from tests.support.coroutines import on_loop, until


async def progress(farm: Around) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = await farm._backend.questions.ask("progress", {})
    return [row for row in rows if row["kind"] == "experiment"]


@on_loop
async def test_the_farm_shows_an_experiment_until_after_its_end(tmp_path: Path) -> None:
    bowl = Bowl()
    bowl.gate.clear()
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


@on_loop
async def test_a_loop_that_is_stopped_has_ended_for_the_farm(tmp_path: Path) -> None:
    async with dispatching(Bowl(), 1) as farm, hosting(tmp_path / "e.db") as host:
        _, experiment = await set_up(host, config_of())
        loop = ClosedLoop(host, experiment.number, farm, LoopOptions(budget=6))
        await loop.begin()
        async with reported(loop, host, experiment.number, farm):
            pass
        (row,) = await progress(farm)
        assert (row["state"], row["done"]) == ("stopped", 0)


class Deaf:
    """A farm that takes no reports."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.told = 0

    async def report_progress(self, kind: str, name: str, **values: Any) -> None:
        self.told += 1
        raise self.error


@pytest.mark.parametrize(
    "error", [UnsupportedFeature("no such question"), RuntimeError("nobody thought of this")]
)
@on_loop
async def test_a_loop_goes_on_where_nobody_hears_of_it(tmp_path: Path, error: Exception) -> None:
    async with dispatching(Bowl(), 1) as farm, hosting(tmp_path / "e.db") as host:
        _, experiment = await set_up(host, config_of())
        loop = ClosedLoop(host, experiment.number, farm, LoopOptions(budget=2))
        await loop.begin()
        deaf = Deaf(error)
        async with (
            reported(loop, host, experiment.number, deaf),
            reported(loop, host, experiment.number, None),
        ):
            ended = await loop.go()
        assert (ended.told, await progress(farm)) == (2, [])
        assert deaf.told >= 1
