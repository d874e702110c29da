"""Threads for jobs: as many as needed, no more than allowed, in order of arrival."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

from farm.transports.crew import Crew
from tests.loops import wait_until
from tests.patience import scaled

LIMIT_S = scaled(10.0)


def names() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("test crew")]


def test_jobs_run_beside_each_other_up_to_the_size() -> None:
    crew = Crew(3, "test crew 3")
    running = threading.Semaphore(0)
    go = threading.Event()

    def job() -> None:
        running.release()
        go.wait(LIMIT_S)

    for _ in range(5):
        crew.do(job)
    for _ in range(3):
        assert running.acquire(timeout=LIMIT_S)
    assert not running.acquire(timeout=0.05)
    go.set()
    for _ in range(2):
        assert running.acquire(timeout=LIMIT_S)
    crew.dismiss()
    wait_until(lambda: "test crew 3" not in names())


def test_an_idle_thread_is_used_again() -> None:
    crew = Crew(8, "test crew 8")
    for _ in range(20):
        done = threading.Event()
        crew.do(done.set)
        assert done.wait(LIMIT_S)
        wait_until(lambda: crew._idle._value > 0)  # it says so after its job
    assert names().count("test crew 8") == 1
    crew.dismiss()


def test_jobs_run_in_order() -> None:
    crew = Crew(1, "test crew 1")
    done: queue.Queue[int] = queue.Queue()
    for i in range(10):
        crew.do(lambda i=i: done.put(i))  # type: ignore[misc]  # a lambda's default has no type
    assert [done.get(timeout=LIMIT_S) for _ in range(10)] == list(range(10))
    crew.dismiss()


def test_what_is_there_is_done_before_the_end() -> None:
    crew = Crew(1, "test crew end")
    done = threading.Event()
    crew.do(lambda: None)
    crew.do(done.set)
    crew.dismiss()
    assert done.wait(LIMIT_S)


def test_the_program_ends_while_a_job_runs() -> None:
    program = (
        "import threading\n"
        "from farm.transports.crew import Crew\n"
        "running = threading.Event()\n"
        "Crew(1, 'x').do(lambda: (running.set(), threading.Event().wait()))\n"
        "running.wait()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S)
