"""A forked process is like one that was just started, whatever its parent was."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.machine.fork_parent import ForkParent
from farm.machine.lifeline import Lifeline
from farm.provision.local.child import Child
from tests.support.running_farm import wait_until
from tests.support.warm_parents import begins_with, warm_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")

FACTS = """
import ctypes, gc, json, os, random, resource, signal, sys, threading
import numpy as np

try:
    from threadpoolctl import threadpool_info
except ImportError:  # it comes with the extra `experiments`
    threadpool_info = list

def kind(descriptor):
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    return name.split(":")[0], os.get_inheritable(descriptor), os.get_blocking(descriptor)

def numbers(descriptors):
    for descriptor in map(int, descriptors):
        try:
            yield kind(descriptor)
        except OSError:
            pass  # the folder itself

signals = [n for n in signal.valid_signals() if n < 32]
total = float((np.ones((300, 300)) @ np.ones((300, 300))).sum())
facts = dict(
    environment=dict(os.environ),
    words=[[word for word in words if not word.isdecimal()] for words in (sys.argv, sys.orig_argv)],
    main=sys.modules["__main__"].__spec__.name,
    path=sys.path,
    folder=os.getcwd(),
    family=[os.getppid(), os.getpgrp() - os.getpid(), os.getsid(0)],
    name=open("/proc/self/comm").read(),
    handlers={n: getattr(signal.getsignal(n), "__name__", signal.getsignal(n)) for n in signals},
    mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    limits=[resource.getrlimit(n) for n in range(16)],
    streams=[(s.fileno(), s.isatty(), s.encoding, s.line_buffering, s.write_through)
             for s in (sys.stdin, sys.stdout, sys.stderr)],
    descriptors=sorted(numbers(os.listdir("/proc/self/fd"))),
    threads=sorted(thread.name for thread in threading.enumerate()),
    blas=[(pool["internal_api"], pool["num_threads"]) for pool in threadpool_info()],
    total=total,
    collects=gc.isenabled(),
    oom=open("/proc/self/oom_score_adj").read(),
    drawn=[random.random(), np.random.random()],
)
facts = json.dumps(facts, default=str)
open(os.environ["FACTS"], "w").write(facts)
print("loaded")
os._exit(7)
"""


@pytest.fixture(scope="module")
def parent() -> Iterator[ForkParent]:
    with warm_parent("m.py", "--connect", "none", OMP_NUM_THREADS="2") as parent:
        yield parent


def wait_for_code(child: Child) -> None:
    wait_until(lambda: child.code() is not None, "it has ended")


def facts_of(folder: Path, parent: ForkParent | None) -> dict[str, Any]:
    model, file, log = folder / "m.py", folder / "facts.json", folder / "log"
    model.write_text(FACTS)
    arguments = [str(model), "--connect", str(folder / "none"), "--device", "a b"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "FACTS": str(file), "Q": "\udcff=é\n"}
    environment.pop("HOME", None)
    child = Child(arguments, log=log, environment=environment, parent=parent)
    try:
        wait_for_code(child)
        assert (child.code(), child.last_lines()) == (7, "loaded")
    finally:
        child.close()
    facts: dict[str, Any] = json.loads(file.read_text())
    return facts


def test_it_has_all_that_a_fresh_interpreter_has(parent: ForkParent, tmp_path: Path) -> None:
    forked, fresh = facts_of(tmp_path, parent), facts_of(tmp_path, None)
    assert forked.pop("drawn") != fresh.pop("drawn")
    assert forked == fresh
    assert forked["family"][:2] == [os.getpid(), 0]
    assert forked["environment"]["Q"] == "\udcff=é\n"
    assert forked["total"] == 300.0**3


def test_it_never_has_the_name_of_its_parent(
    parent: ForkParent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of processes show it under this one from its fork on, also while it still waits."""
    names: list[str] = []

    tie = Lifeline.tie

    def watched(lifeline: Lifeline, pid: int) -> None:
        names.append(Path(f"/proc/{pid}/comm").read_text())
        tie(lifeline, pid)

    monkeypatch.setattr(Lifeline, "tie", watched)
    own = facts_of(tmp_path, parent)["name"]
    assert names == [own]


def test_each_draws_random_numbers_of_its_own(parent: ForkParent, tmp_path: Path) -> None:
    (one, two), (three, four) = (facts_of(tmp_path, parent)["drawn"] for _ in range(2))
    assert len({one, two, three, four}) == 4


def test_a_random_generator_that_was_made_before_is_seeded_again(tmp_path: Path) -> None:
    """As if numpy imported it at once, as its versions before 2 do."""
    variables = begins_with(tmp_path, "import numpy.random\nnumpy.random.seed(1)\n")
    with warm_parent("m.py", "--connect", "none", OMP_NUM_THREADS="2", **variables) as parent:
        drawn = [facts_of(tmp_path, parent)["drawn"][1] for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_a_model_that_is_newer_than_the_parent_is_found(parent: ForkParent, tmp_path: Path) -> None:
    """Its folder is on the path already, and was read before the file was there."""
    for number in range(3):
        (tmp_path / f"part{number}.py").write_text(f"value = {number}\n")
        model = tmp_path / f"whole{number}.py"  # Python may take a file of this second for the last
        model.write_text(f"import part{number}, os\nos._exit(part{number}.value)\n")
        arguments = [str(model), "--connect", "none"]
        log = tmp_path / "log"
        child = Child(arguments, log=log, environment=os.environ, parent=parent)
        try:
            wait_for_code(child)
            assert child.code() == number, child.last_lines()
        finally:
            child.close()
