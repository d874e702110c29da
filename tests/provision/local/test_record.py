"""The shared record: written in one process, read in another, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from farm.provision.local.record import TASKS_KEPT, VERSION, Running, RunRecord


@pytest.fixture
def record() -> Iterator[RunRecord]:
    made = RunRecord.create()
    yield made
    made.close()


def tasks(record: RunRecord) -> tuple[int, ...] | None:
    running = record.read()
    assert running is not None
    return running.tasks


def test_a_new_record_says_idle(record: RunRecord) -> None:
    assert record.read() == Running((), 0.0)


@pytest.mark.parametrize("ids", [[1], [2**62, 5], list(range(TASKS_KEPT)), []])
def test_what_is_written_is_read(record: RunRecord, ids: list[int]) -> None:
    record.runs([7, 8, 9])
    before = time.monotonic()
    record.runs(ids)
    running = record.read()
    assert running is not None
    assert running.tasks == tuple(ids)
    assert before <= running.since_s + 1e-6
    assert running.since_s <= time.monotonic()


def test_each_row_of_a_run_begins_anew(record: RunRecord) -> None:
    record.runs([7], 41)
    first = record.read()
    assert first is not None
    assert (first.tasks, first.row) == ((7,), 41)
    time.sleep(0.001)
    record.runs([7], 42)
    second = record.read()
    assert second is not None
    assert second.row == 42
    assert second.since_s > first.since_s, "the time limit is one of rows"
    record.runs([8])
    assert record.read() == Running((8,), record.read().since_s, 0)  # type: ignore[union-attr]  # there is one


def test_more_tasks_than_there_is_room_for(record: RunRecord) -> None:
    record.runs(range(TASKS_KEPT + 1))
    assert tasks(record) is None


def test_another_process_reads_it(record: RunRecord) -> None:
    code = (
        "import sys; from farm.provision.local.record import RunRecord;"
        "RunRecord(int(sys.argv[1])).runs([3, 4])"
    )
    words = [sys.executable, "-c", code, str(record.descriptor)]
    subprocess.run(words, pass_fds=[record.descriptor], check=True, timeout=30)
    assert tasks(record) == (3, 4)


def test_a_writer_that_died_while_it_wrote(record: RunRecord) -> None:
    record.runs([1])
    record._words[VERSION] += 1
    assert record.read() is None


def test_a_read_is_whole_while_another_thread_writes(record: RunRecord) -> None:
    end = threading.Event()

    def write() -> None:
        n = 0
        while not end.is_set():
            n += 1
            record.runs([n] * (1 + n % 50))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2000):
            running = record.read()
            if running is not None and running.tasks:
                n = running.tasks[0]
                assert running.tasks == (n,) * (1 + n % 50)
    finally:
        end.set()
        writer.join()


def test_a_closed_record_can_still_be_read(record: RunRecord) -> None:
    record.runs([5])
    record.close()
    record.close()
    assert tasks(record) == (5,)
