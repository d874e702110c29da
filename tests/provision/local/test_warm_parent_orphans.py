"""A process adopts orphans in the block only, also if blocks of several threads overlap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import psutil
import pytest

from farm.provision.local.warm_parent import adopting_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")

LEAVES_A_CHILD = (
    "import subprocess, sys\n"
    "wait = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"
    "child = subprocess.Popen(wait, stdout=subprocess.DEVNULL)\n"
    "print(child.pid, flush=True)\n"
)


@contextmanager
def orphan(block: AbstractContextManager[None]) -> Iterator[psutil.Process]:
    """Run a program that ends in the block, and yield the process that it leaves behind."""
    read_end, write_end = os.pipe()
    try:
        with block:
            out = subprocess.check_output([sys.executable, "-c", LEAVES_A_CHILD], stdin=read_end)
        yield psutil.Process(int(out))
    finally:
        os.close(write_end)
        os.close(read_end)


def adopts(block: AbstractContextManager[None] = nullcontext()) -> bool:  # noqa: B008
    with orphan(block) as process:
        adopted = bool(process.ppid() == os.getpid())
        pid = process.pid
    if adopted:
        os.waitpid(pid, 0)
    return adopted


def test_orphans_are_adopted_in_the_block_only() -> None:
    assert adopts(adopting_orphans())
    assert not adopts()


def test_the_last_of_overlapping_blocks_ends_it() -> None:
    one, other = adopting_orphans(), adopting_orphans()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert adopts()
    other.__exit__(None, None, None)
    assert not adopts()


ADOPTED_BEFORE = """
import ctypes
from farm.provision.local.warm_parent import adopting_orphans
prctl, was = ctypes.CDLL(None).prctl, ctypes.c_int()
prctl(36, 1, 0, 0, 0)
with adopting_orphans():
    pass
prctl(37, ctypes.byref(was), 0, 0, 0)
print(was.value)
"""


def test_a_program_that_adopts_orphans_itself_goes_on_doing_so() -> None:
    out = subprocess.check_output([sys.executable, "-c", ADOPTED_BEFORE], text=True)
    assert out == "1\n"
