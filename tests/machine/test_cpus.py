"""The number of threads for a model call."""

from __future__ import annotations

import os

import pytest

from farm.machine.cpus import allowed_cpus, cpus


@pytest.mark.parametrize(("told", "found"), [("3", 3), ("4,2", 4), (" 2 ", 2)])
def test_the_supervisors_word_counts(told: str, found: int) -> None:
    assert cpus({"OMP_NUM_THREADS": told}) == found


@pytest.mark.parametrize("told", ["", "0", "many", "-1"])
def test_otherwise_what_the_kernel_allows(told: str) -> None:
    assert cpus({"OMP_NUM_THREADS": told}) == len(os.sched_getaffinity(0))


def test_where_the_kernel_tells_no_process_its_cpus_all_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS has no `sched_getaffinity`."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert allowed_cpus() == os.cpu_count()
