"""The process that others are forked from, and what becomes of them when it dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farm.provision.local import warm_parent as module
from farm.provision.local.child import Child
from farm.provision.local.warm_parent import ParentLost, WarmParent
from tests.support.running_farm import LIMIT_S, Farm, wait_until
from tests.support.warm_parents import begins_with, warm_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")

WORDS = ("m.py", "--connect", "none")


@pytest.fixture
def parent() -> Iterator[WarmParent]:
    with warm_parent(*WORDS) as parent:
        yield parent


@pytest.fixture
def fork(farm: Farm, models: Path, tmp_path: Path) -> Iterator[Fork]:
    fork = Fork([f"{models}:die", "--connect", str(farm.connect)], tmp_path / "log")
    yield fork
    for child in fork.children:
        child.close()


class Fork:
    """Forks model processes that serve the model `die`."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self.children: list[Child] = []

    def __call__(self, parent: WarmParent) -> Child:
        child = Child(self.arguments, log=self.log, environment=os.environ, parent=parent)
        self.children.append(child)
        return child


def wait_for_code(child: Child) -> int:
    wait_until(lambda: child.code() is not None, "the process has ended")
    code = child.code()
    assert code is not None
    return code


def ours() -> set[int]:
    """Return the processes that this one would have to wait for, those that ended included."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_a_process_ends_as_if_this_one_had_started_it(
    farm: Farm, parent: WarmParent, fork: Fork
) -> None:
    child = fork(parent)
    assert psutil.Process(child.pid).ppid() == os.getpid()
    assert os.getpgid(child.pid) == child.pid
    for how, code in ((1, -signal.SIGSEGV), (2, -signal.SIGKILL), (3, 3)):
        farm.wait_for_workers(1)
        call = farm.submit("die", how)
        assert wait_for_code(child) == code
        assert ("Segmentation fault" in child.last_text()) == (how == 1), "from faulthandler"
        call.cancel()
        child = fork(parent)
    farm.wait_for_workers(1)
    assert farm.call("die", 7) == 7
    child.drain()
    assert wait_for_code(child) == 0
    child.listen()
    assert child.status.done


def test_a_stop_is_seen(farm: Farm, parent: WarmParent, fork: Fork) -> None:
    child = fork(parent)
    farm.wait_for_workers(1)
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: child.stopped_s(time.monotonic()) > 0, "the stop is seen")
    os.kill(child.pid, signal.SIGCONT)
    wait_until(lambda: child.stopped_s(time.monotonic()) == 0, "that it runs is seen")


def test_those_that_run_outlive_it(farm: Farm, parent: WarmParent, fork: Fork) -> None:
    child = fork(parent)
    farm.wait_for_workers(1)
    os.kill(parent.pid, signal.SIGKILL)
    with pytest.raises(ParentLost, match="it has ended: signal SIGKILL"):
        wait_until(lambda: not parent.look(time.monotonic()), "its end is seen")
    assert farm.call("die", 7) == 7
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ParentLost):
        fork(parent)
    assert len(os.listdir("/proc/self/fd")) == before
    child.kill()
    assert wait_for_code(child) == -signal.SIGKILL


def test_a_signal_to_all_processes_of_a_job_does_not_end_it(parent: WarmParent, fork: Fork) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(parent.pid, number)
    child = fork(parent)
    child.kill()
    assert wait_for_code(child) == -signal.SIGKILL


def test_one_that_does_not_answer_is_killed(
    parent: WarmParent, fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.kill(parent.pid, signal.SIGSTOP)
    parent._control.settimeout(0.2)
    with pytest.raises(ParentLost, match="it does not answer"):
        fork(parent)
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
def test_a_death_while_it_forks_leaves_no_process(
    fork: Fork, tmp_path: Path, when: str, whom: str
) -> None:
    code = KILLED_WHILE_IT_FORKS.format(when=when, whom=whom)
    before = ours()
    variables = begins_with(tmp_path, code)
    with warm_parent(*WORDS, **variables) as parent, pytest.raises(ParentLost, match="has ended"):
        fork(parent)
    assert ours() == before


def test_a_limit_on_processes_is_an_error_as_at_any_start(fork: Fork, tmp_path: Path) -> None:
    full = "import errno\ndef full(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
    between = "(len(forks) == 3 and forks[0] != forks[2])"
    for at in ("len(forks) == 2", between):
        code = KILLED_WHILE_IT_FORKS.replace("pid = fork()", f"pid = full() if {at} else fork()")
        variables = begins_with(tmp_path, full + code.format(when="False", whom="0"))
        with warm_parent(*WORDS, **variables) as parent:
            with pytest.raises(OSError, match="cannot fork: Resource temporarily unavailable"):
                fork(parent)
            child = fork(parent)
            child.kill()
            assert wait_for_code(child) == -signal.SIGKILL


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
    variables = begins_with(tmp_path, code)
    with pytest.raises(ParentLost, match=why), warm_parent(*WORDS, **variables):
        pass


def test_one_that_loads_for_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOAD_S", 0.1)
    variables = begins_with(tmp_path, "import signal\nsignal.pause()\n")
    why = r"it has not loaded the libraries after 0\.1 s"
    with pytest.raises(ParentLost, match=why), warm_parent(*WORDS, **variables):
        pass


def test_it_ends_with_its_starter(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import os, signal, time\n"
        "from farm.provision.local.warm_parent import WarmParent\n"
        "parent = WarmParent(['m.py', '--connect', 'none'], os.environ)\n"
        "while not parent.look(time.monotonic()): time.sleep(0.01)\n"
        "print(parent.pid, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait(LIMIT_S)
        wait_until(lambda: not psutil.pid_exists(pid), "it has ended")
