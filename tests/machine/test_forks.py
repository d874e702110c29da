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


def output(program: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout, done.stderr


def test_each_child_renews_what_it_inherits() -> None:
    assert output(PROGRAM) == ("12 0\n", "")


FAILING = """
import os
from farm.machine.forks import renew_in_children

renewed = []

class Thing:
    def __init__(self, number):
        self.number = number
        renew_in_children(self)

    def renew(self):
        if self.number % 2:
            raise OSError("no")
        renewed.append(self.number)

things = [Thing(number) for number in range(8)]
if os.fork() == 0:
    os._exit(len(renewed))
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_one_that_cannot_be_renewed_keeps_no_other_from_it() -> None:
    said, errors = output(FAILING)
    assert said == "4\n"
    assert errors.count("cannot be renewed in a forked process") == 4


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
