"""The interface of a batch system."""

from __future__ import annotations

from farm.provision.batch.slurm import Slurm
from farm.provision.batch.system import BatchSystem, JobRow, Stand


def test_a_row_is_told_with_its_reason_if_it_has_one() -> None:
    assert JobRow("1", Stand.ENDED, "COMPLETED", "x").in_words == "COMPLETED"
    row = JobRow("1", Stand.ENDED, "FAILED", "x", reason="NonZeroExitCode")
    assert row.in_words == "FAILED (NonZeroExitCode)"


def test_slurm_has_all_calls_of_the_interface() -> None:
    calls = [name for name in vars(BatchSystem) if not name.startswith("_")]
    assert len(calls) == 6
    assert all(callable(getattr(Slurm, name)) for name in calls)
