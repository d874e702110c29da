"""Objects are renewed in forked processes, and only there."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

from farm.machine.forks import renew_in_children

PROGRAM = """
import os, sys
from farm.machine.forks import renew_in_children

class Counter:
    def __init__(self):
        self.renewed = 0
        renew_in_children(self)

    def renew(self):
        self.renewed += 1

kept, dropped = Counter(), Counter()
del dropped
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(kept.renewed)
    os._exit(10 * kept.renewed + os.waitstatus_to_exitcode(os.wait()[1]))
print(os.waitstatus_to_exitcode(os.wait()[1]), kept.renewed)
"""


def test_each_child_renews_what_it_inherits() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "12 0\n"
    assert done.stderr == ""


class Loud:
    def renew(self) -> None:
        os._exit(3)


def test_an_object_may_be_collected() -> None:
    loud = Loud()
    renew_in_children(loud)
    del loud
    gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
