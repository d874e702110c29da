"""The fitting process, tested through its line."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.ask.fitters import MODULE
from farm.experiment.config.reader import read_config
from farm.experiment.work import Data, Generate, Generated, Query, QueryKind, Work
from farm.machine.job_process import JobProcess
from tests.support.experiment_clients import CONFIG

READ = read_config(CONFIG)
NONE = Data(np.empty((0, 1, 2)), np.empty((0, 1)), 1)
ASK = Generate(READ, 0, 2, 0, NONE, np.empty((0, 1, 2)))
WRONG = Query(READ, 0, QueryKind.MAX, NONE)


@pytest.fixture(scope="module")
def process() -> Iterator[JobProcess]:
    with closing(JobProcess(MODULE)) as process:
        yield process


def answer(process: JobProcess, work: Work) -> object:
    (frame,) = process.ask([pickle.dumps(work)])
    return pickle.loads(frame)


def test_work_in_and_what_comes_of_it_out(process: JobProcess) -> None:
    first, second, third = (answer(process, work) for work in (ASK, WRONG, ASK))
    assert isinstance(first, Generated)
    assert isinstance(second, InvalidInput)
    assert isinstance(third, Generated)
    assert np.array_equal(first.points, third.points)
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "800\n"


def test_a_signal_of_the_terminal_does_not_end_it(process: JobProcess) -> None:
    answer(process, ASK)
    process.send_signal(signal.SIGINT)
    assert isinstance(answer(process, ASK), Generated)


def test_it_gives_its_descriptors_to_no_program(process: JobProcess) -> None:
    answer(process, ASK)
    kept = []
    for info in Path(f"/proc/{process.pid}/fdinfo").iterdir():
        flags = dict(line.split(":") for line in info.read_text().splitlines()[:2])["flags"]
        if not int(flags, 8) & os.O_CLOEXEC:
            kept.append(int(info.name))
    assert sorted(kept) == [0, 1, 2]
