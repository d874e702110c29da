"""The process that others are forked from, and what becomes of them when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from farm.machine import fork_parent as module
from farm.machine.fork_parent import ForkParent, ModuleProcess, ParentLost, adopting_orphans
from tests.support.running_farm import LIMIT_S, wait_until
from tests.support.warm_parents import begins_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")

MODULE = "tests.support.forked_module"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
PAUSE = "import signal; signal.pause()"


@contextmanager
def parent_with(environment: dict[str, str]) -> Iterator[ForkParent]:
    with closing(ForkParent(MODULE, [PAUSE], {**ENVIRONMENT, **environment})) as parent:
        wait_until(lambda: parent.look(time.monotonic()), "it has loaded")
        yield parent


@pytest.fixture
def parent() -> Iterator[ForkParent]:
    """One that a test may kill."""
    with parent_with({}) as parent:
        yield parent


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkParent]:
    with parent_with({}) as parent:
        yield parent


@contextmanager
def forked(parent: ForkParent | None, code: str = PAUSE) -> Iterator[ModuleProcess]:
    process = ModuleProcess(
        MODULE, [code], environment=ENVIRONMENT, output=2, descriptors={}, parent=parent
    )
    with closing(process):
        yield process


def begins(folder: Path, code: str) -> dict[str, str]:
    """Return variables with which the parent runs this code first."""
    begins_with(folder, code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), ENVIRONMENT["PYTHONPATH"]])}


def ours() -> set[int]:
    """Return the processes that this one would have to wait for, those that ended included."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise SystemExit(3)", 3),
        ("pass", 0),
    ],
)
def test_a_process_ends_as_if_this_one_had_started_it(
    shared: ForkParent, code: str, status: int
) -> None:
    for source in (shared, None):
        with forked(source, code) as process:
            assert process.wait() == status


def test_those_that_run_outlive_it(parent: ForkParent) -> None:
    with forked(parent) as process:
        os.kill(parent.pid, signal.SIGKILL)
        with pytest.raises(ParentLost, match="it has ended: signal SIGKILL"):
            wait_until(lambda: not parent.look(time.monotonic()), "its end is seen")
        assert process.lives()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ParentLost), forked(parent):
            pass
        assert len(os.listdir("/proc/self/fd")) == before
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_signal_to_all_processes_of_a_job_does_not_end_it(shared: ForkParent) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(shared.pid, number)
    with forked(shared) as process:
        assert process.lives()
        assert psutil.Process(process.pid).ppid() == os.getpid()
        assert os.getpgid(process.pid) == process.pid


def test_one_that_does_not_answer_is_killed(parent: ForkParent) -> None:
    os.kill(parent.pid, signal.SIGSTOP)
    parent._control.settimeout(0.2)
    with pytest.raises(ParentLost, match="it does not answer"), forked(parent):
        pass
    assert parent.pid not in ours()


KILLED_WHILE_IT_FORKS = """
import os, signal, sys
forks, fork = [], os.fork
def and_kill():
    # The parent tries once; then it forks a process, which forks the one that is wanted.
    forks.append(os.getpid())
    pid = fork()
    if {when}:
        os.kill({whom}, signal.SIGKILL)
    return pid
if any(word.startswith("--forks") for word in sys.orig_argv):
    os.fork = and_kill
"""


@pytest.mark.parametrize(
    ("when", "whom"),
    [
        ("len(forks) == 2 and pid", "os.getpid()"),
        ("len(forks) == 2 and not pid", "os.getppid()"),
        ("len(forks) == 2 and not pid", "os.getpid()"),
        ("len(forks) == 3 and pid", "forks[0]"),
        ("len(forks) == 3 and pid", "os.getpid()"),
    ],
)
def test_a_death_while_it_forks_leaves_no_process(tmp_path: Path, when: str, whom: str) -> None:
    code = KILLED_WHILE_IT_FORKS.format(when=when, whom=whom)
    before = ours()
    with (
        parent_with(begins(tmp_path, code)) as parent,
        pytest.raises(ParentLost, match="has ended"),
        forked(parent),
    ):
        pass
    assert ours() <= before


def test_a_limit_on_processes_is_an_error_as_at_any_start(tmp_path: Path) -> None:
    full = "import errno\ndef full(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
    between = "(len(forks) == 3 and forks[0] != forks[2])"
    for at in ("len(forks) == 2", between):
        code = KILLED_WHILE_IT_FORKS.replace("pid = fork()", f"pid = full() if {at} else fork()")
        variables = begins(tmp_path, full + code.format(when="False", whom="0"))
        with parent_with(variables) as parent:
            why = "cannot fork: Resource temporarily unavailable"
            with pytest.raises(OSError, match=why), forked(parent):
                pass
            with forked(parent) as process:
                assert process.lives()


THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
OF_A_LIBRARY = "import _thread, signal\n_thread.start_new_thread(signal.pause, ())\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (THREAD, "it has the threads MainThread, Thread-1"),
        (OF_A_LIBRARY, "it has 2 threads, some of a library"),
        ("import os\nos._exit(5)\n", "it has ended: exit code 5"),
    ],
)
def test_one_that_may_not_fork_says_why(tmp_path: Path, code: str, why: str) -> None:
    with pytest.raises(ParentLost, match=why), parent_with(begins(tmp_path, code)):
        pass


def test_one_that_loads_for_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOAD_S", 0.1)
    why = r"it has not loaded the libraries after 0\.1 s"
    with pytest.raises(ParentLost, match=why), parent_with(begins(tmp_path, PAUSE)):
        pass


STARTER = f"""
import os, time
from farm.machine.fork_parent import ForkParent, ModuleProcess
parent = ForkParent({MODULE!r}, ["pass"], os.environ)
while not parent.look(time.monotonic()): time.sleep(0.01)
given = dict(environment=os.environ, output=2, descriptors={{}}, parent=parent)
process = ModuleProcess({MODULE!r}, [{PAUSE!r}], **given)
print(parent.pid, process.pid, flush=True)
{PAUSE}
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_all_end_with_their_starter(stopped: bool) -> None:
    words = [sys.executable, "-c", STARTER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=ENVIRONMENT) as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        if stopped:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        starter.kill()
        starter.wait(LIMIT_S)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "they have ended")


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
from farm.machine.fork_parent import adopting_orphans
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
