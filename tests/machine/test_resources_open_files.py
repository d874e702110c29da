"""The limit of open files is raised as far as the hard limit allows, and returned."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
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
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == str(limit)
