"""The CPUs, memory and open files that a process may use, and the memory that it keeps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from farm.machine import resources
from farm.machine.resources import allowed_cpus, cpus, usable_memory
from tests.support.time_limits import scaled


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


KEEPS = """
import resource, sys
import numpy as np
from farm.machine.resources import keep_freed_memory

kept = keep_freed_memory() if "keep" in sys.argv else None

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(int(sys.argv[1])):
        arrays = [np.ones(100_000) for _ in range(4)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(kept, faults())
"""


def run(rounds: int, *arguments: str, **variables: str) -> tuple[str, int]:
    """The program's output: whether memory is kept, and page faults of 3.2 MB in each round."""
    # Dask, for one, leaves a setting of glibc in the environment of a process that starts workers.
    inherited = {k: v for k, v in os.environ.items() if k not in resources._VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", KEEPS, str(rounds), *arguments],
        env=inherited | variables,
        capture_output=True,
        text=True,
        timeout=scaled(30.0),
        check=True,
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_arrays_take_the_memory_of_those_before_them() -> None:
    kept, faults = run(100, "keep")
    assert kept == "True"
    assert faults < 2_000
    assert run(100)[1] > 20_000


def test_what_the_user_says_counts() -> None:
    assert run(0, "keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"


OPENS = """
import resource, sys
from farm.machine.resources import allow_many_open_files
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
limit = allow_many_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, hard)
sys.stdout.write(str(limit))
"""


@pytest.mark.parametrize(("soft", "hard", "limit"), [(100, 2000, 2000), (300, 300, 300)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, limit: int) -> None:
    command = [sys.executable, "-c", OPENS, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == str(limit)
