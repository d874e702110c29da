"""Arrays that come and go cost no page faults once memory is kept."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from farm.machine.resources import keep_freed_memory

kept = keep_freed_memory() if "keep" in sys.argv else None

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        arrays = [np.ones(100_000) for _ in range(4)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(kept, faults())
"""


def run(*arguments: str, **variables: str) -> tuple[str, int]:
    """The program's output: whether memory is kept, and page faults of 320 MB of arrays."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_arrays_take_the_memory_of_those_before_them() -> None:
    kept, faults = run("keep")
    assert kept == "True"
    assert faults < 2_000
    assert run()[1] > 20_000


def test_what_the_user_says_counts() -> None:
    assert run("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
