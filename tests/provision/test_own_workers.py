"""The workers that a farm starts itself, as what it expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.provision.local.supervisor import WorkersFailed
from farm.provision.own_workers import LONGEST_NAMES, OwnWorkers
from farm.settings import Settings


def own(folder: Path, *models: str, **settings: int) -> OwnWorkers:
    return OwnWorkers(models, Settings(dir=folder, **settings), folder / "farm.json")  # type: ignore[arg-type]


def test_callers_hear_which_models_are_loaded_until_some_are_known(tmp_path: Path) -> None:
    expected = own(tmp_path, "beam.py", "plate.py", workers=1)
    assert expected
    assert expected.may_come
    assert expected.awaited(()) == (
        "the farm waits for its first worker, which loads beam.py, plate.py"
    )
    assert expected.awaited({"beam"}) == ""
    many = own(tmp_path, *("beam.py" for _ in range(100)), workers=1)
    assert len(many.awaited(())) < 2 * LONGEST_NAMES


def test_a_farm_may_have_none_of_its_own(tmp_path: Path) -> None:
    assert not own(tmp_path, "beam.py", workers=0)
    assert not own(tmp_path, workers=2)


def test_a_worker_of_another_farm_is_not_its_own(tmp_path: Path) -> None:
    one, other = own(tmp_path, "beam.py"), own(tmp_path, "beam.py")
    mark = {"started_by": one._mark}
    assert one.has_started(mark)
    assert not other.has_started(mark)
    assert not one.has_started({})


async def test_those_that_never_started_end_at_once(tmp_path: Path) -> None:
    for expected in (own(tmp_path, "beam.py"), own(tmp_path)):
        expected.hurry()
        await expected.stop(60.0)


async def test_the_error_of_their_start_ends_the_farm(tmp_path: Path) -> None:
    expected = own(tmp_path, "beam.py")
    here = expected._here
    assert here is not None
    here.ended.set_exception(WorkersFailed("no licence"))
    with pytest.raises(WorkersFailed, match="no licence"):
        await expected.wait_failed()
