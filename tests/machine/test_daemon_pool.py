"""Daemon threads: started on demand, never too many, jobs in order of arrival."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

from farm.machine.daemon_pool import DaemonPool
from tests.support.coroutines import wait_until
from tests.support.time_limits import scaled

LIMIT_S = scaled(10.0)


def names() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("test pool")]


def test_jobs_run_beside_each_other_up_to_the_size() -> None:
    pool = DaemonPool(3, "test pool 3")
    running = threading.Semaphore(0)
    go = threading.Event()

    def job() -> None:
        running.release()
        go.wait(LIMIT_S)

    for _ in range(5):
        pool.submit(job)
    for _ in range(3):
        assert running.acquire(timeout=LIMIT_S)
    assert not running.acquire(timeout=0.05)
    go.set()
    for _ in range(2):
        assert running.acquire(timeout=LIMIT_S)
    pool.shutdown()
    wait_until(lambda: "test pool 3" not in names())


def test_an_idle_thread_is_used_again() -> None:
    pool = DaemonPool(8, "test pool 8")
    for _ in range(20):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(LIMIT_S)
        wait_until(lambda: pool._idle._value > 0)  # the thread releases it after its job
    assert names().count("test pool 8") == 1
    pool.shutdown()


def test_each_thread_begins_with_its_number() -> None:
    here = threading.local()
    seen: queue.Queue[int] = queue.Queue()
    meeting = threading.Barrier(3)

    def begin(number: int) -> None:
        here.number = number

    def job() -> None:
        meeting.wait(LIMIT_S)
        seen.put(here.number)

    pool = DaemonPool(3, "test pool of numbers", begin)
    for _ in range(6):
        pool.submit(job)
    assert sorted(seen.get(timeout=LIMIT_S) for _ in range(6)) == [0, 0, 1, 1, 2, 2]
    pool.shutdown()


def test_jobs_run_in_order_and_before_the_end() -> None:
    pool = DaemonPool(1, "test pool 1")
    done: queue.Queue[int] = queue.Queue()
    for i in range(10):
        pool.submit(lambda i=i: done.put(i))  # type: ignore[misc]  # a lambda's default has no type
    pool.shutdown()
    assert [done.get(timeout=LIMIT_S) for _ in range(10)] == list(range(10))


def test_the_program_ends_while_a_job_runs() -> None:
    program = (
        "import threading\n"
        "from farm.machine.daemon_pool import DaemonPool\n"
        "running = threading.Event()\n"
        "DaemonPool(1, 'x').submit(lambda: (running.set(), threading.Event().wait()))\n"
        "running.wait()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S)


FORKER = """
import os, sys, threading
from farm.machine.daemon_pool import DaemonPool

pool = DaemonPool(1, "test pool")
go = threading.Event()
pool.submit(go.wait)
pool.submit(lambda: os._exit(9))  # the parent's
child = os.fork()
if child == 0:
    pool.submit(lambda: os._exit(0))
    threading.Event().wait()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_threads_of_its_own_and_no_jobs_of_its_parent() -> None:
    subprocess.run([sys.executable, "-c", FORKER], check=True, timeout=LIMIT_S)
