"""The memory of this machine, and the limit of a container."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from farm.machine.memory import usable_memory


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
