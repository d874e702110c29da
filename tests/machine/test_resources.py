"""The CPUs and the memory of this machine, and the limits of a container."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from farm.machine.resources import allowed_cpus, cpus, usable_memory


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


def test_without_a_container_it_is_the_machine_s(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == psutil.virtual_memory().total
    assert 0 < usable_memory() <= psutil.virtual_memory().total


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_may_have_less(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("100000000\n")
    assert usable_memory(tmp_path) == 100_000_000
    (tmp_path / name).write_text("9223372036854771712\n")
    assert usable_memory(tmp_path) == psutil.virtual_memory().total
    (tmp_path / name).write_text("max\n")
    assert usable_memory(tmp_path) == psutil.virtual_memory().total
