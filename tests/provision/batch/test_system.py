"""The values of the interface of a batch system."""

from __future__ import annotations

from farm.provision.batch.system import JobRow, Stand


def test_a_row_is_told_with_its_reason_if_it_has_one() -> None:
    assert JobRow("1", Stand.ENDED, "COMPLETED", "x").in_words == "COMPLETED"
    row = JobRow("1", Stand.ENDED, "FAILED", "x", reason="NonZeroExitCode")
    assert row.in_words == "FAILED (NonZeroExitCode)"
