"""The host of experiments: answered requests are durable, refused ones leave no trace."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.errors import FarmError, InvalidInput, Unavailable, UnsupportedFeature
from farm.experiment.ask.fitters import Fitters
from farm.experiment.config.reader import read_config
from farm.experiment.host import Experiments
from farm.experiment.session import TRIALS_AN_EVENT, RunAction, RunCommand, Session
from farm.experiment.state.events import Asked, Event, Failed, Finished, Seeded, SetUp, Told
from farm.experiment.state.experiment import Experiment
from farm.experiment.state.journal import ExperimentJournal, read_journal
from farm.experiment.state.seeding import InitialTrials
from farm.experiment.work import Generated
from farm.protocols.aepsych.codec import AepsychRequest
from tests.experiment.subjects import asked, hosting, set_up
from tests.support.coroutines import LIMIT_S, on_loop, until
from tests.support.experiment_clients import CONFIG, SETUP

WITH_FARM = {"config_dict": {**CONFIG, "farm": {"model": "beam"}}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experiments.db"


def started(path: Path, *, in_processes: bool = False) -> AbstractAsyncContextManager[Experiments]:
    """Run the experiments of a journal, with fitters that load no libraries."""
    return hosting(path, fitters=Fitters(in_processes=in_processes, libraries=False))


@asynccontextmanager
async def begun(
    path: Path, *, in_processes: bool = False
) -> AsyncIterator[tuple[Experiments, Session]]:
    """Run experiments with one that was set up, and its session."""
    async with started(path, in_processes=in_processes) as experiments:
        session, _ = await set_up(experiments, CONFIG)
        yield experiments, session


async def kept(path: Path) -> list[Any]:
    """Return the state that the journal gives to the next server."""
    async with started(path) as experiments:
        return state(experiments)


async def tell(experiments: Experiments, session: Session, x: float) -> None:
    message = {"config": {"x": x, "y": 0.0}, "outcome": 1.5}
    assert (await asked(experiments, session, "tell", **message))["trials_recorded"] == 1


def state(experiments: Experiments) -> list[Any]:
    """Return all visible state."""
    for experiment in experiments.experiments.values():
        experiment.check()
    return [
        (
            experiment.snapshot(),
            [(id, point.tolist(), time) for id, (point, time) in experiment.pending.items()],
            experiment.data(0).x.tolist(),
            experiment.seed,
            experiment.config.text,
        )
        for experiment in experiments.experiments.values()
    ]


async def points_given(path: Path, *, restarts: bool) -> list[Any]:
    """Return points of two experiments; with `restarts`, the server restarts after each."""
    points = []
    server = AsyncExitStack()
    experiments = await server.enter_async_context(started(path))
    sessions = [experiments.session(), experiments.session()]
    for session in sessions:
        await asked(experiments, session, "setup", **SETUP)
    for k in range(6):
        for number in (0, 1):
            answer = await asked(experiments, sessions[number], "ask", num_points=1 + k % 2)
            points.append(answer["config"])
            if k % 3 == number:
                await tell(experiments, sessions[number], answer["config"]["x"][0])
            if k == 4 and number == 1:
                await asked(experiments, sessions[1], "finish_strategy")
            if restarts:
                before = state(experiments)
                await server.aclose()
                experiments = await server.enter_async_context(started(path))
                assert state(experiments) == before
                sessions = [experiments.session(), experiments.session()]
                for i, session in enumerate(sessions):
                    await asked(experiments, session, "resume", strat_id=i)
    await server.aclose()
    return points


def test_a_restart_changes_nothing(path: Path) -> None:
    straight = asyncio.run(points_given(path, restarts=False))
    restarted = asyncio.run(points_given(path.with_name("other.db"), restarts=True))
    assert restarted == straight
    assert len({str(points) for points in straight}) == len(straight)


async def test_an_experiment_and_its_initial_trials_are_stored_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between them would leave an experiment that never gets its trials."""
    points = np.array([[[0.5, 1.0]], [[0.25, -2.0]]])
    given = InitialTrials(points, np.array([[3.0], [4.0]]), "two trials")
    appended: list[list[type[Event]]] = []
    append = ExperimentJournal.append

    def seen(journal: ExperimentJournal, events: Sequence[Event]) -> Future[None]:
        appended.append([type(event) for event in events])
        return append(journal, events)

    monkeypatch.setattr(ExperimentJournal, "append", seen)

    async with started(path) as experiments:
        text = read_config(CONFIG).text
        assert await experiments.set_up(text, [given]) == 0
        assert await experiments.set_up(text, []) == 1
        assert appended == [[SetUp, Seeded], [SetUp]]
        before = state(experiments)
        assert experiments.experiments[0].data(0).y.tolist() == [[3.0], [4.0]]
        with pytest.raises(InvalidInput):
            await experiments.set_up("[common]\n", [given])
        assert state(experiments) == before
    assert await kept(path) == before


async def test_what_is_refused_leaves_nothing(path: Path) -> None:
    async with started(path) as experiments:
        session = experiments.session()
        bad = {"config_dict": {**CONFIG, "begin": {"generator": "NoGenerator"}}}
        for _ in range(2):
            with pytest.raises(FarmError, match="NoGenerator"):
                await asked(experiments, session, "setup", **bad)
        assert experiments.experiments == {}
        assert await asked(experiments, session, "setup", **SETUP) == {"strat_id": 0}
        before = state(experiments)
        for message in ({"config": {"x": 1}, "outcome": 1}, {"config": {"x": 1, "y": 1}}):
            with pytest.raises(InvalidInput):
                await asked(experiments, session, "tell", **message)
        with pytest.raises(InvalidInput):
            await asked(experiments, session, "ask", fixed_pars={"z": 1})
        assert state(experiments) == before
    assert len(list(read_journal(path))) == 1


@contextmanager
def full_disk() -> Iterator[None]:
    """Make every write fail."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        yield


async def test_what_cannot_be_kept_did_not_happen(path: Path) -> None:
    async with started(path) as experiments:
        session = experiments.session()
        with full_disk(), pytest.raises(Unavailable, match="nothing was done"):
            await asked(experiments, session, "setup", **SETUP)
        assert session.current is None
        await asked(experiments, session, "setup", **SETUP)
        first = await asked(experiments, session, "ask")
        before = state(experiments)
        with full_disk():
            for kind in ("ask", "finish_strategy"):
                with pytest.raises(Unavailable, match="cannot be written"):
                    await asked(experiments, session, kind)
            with pytest.raises(Unavailable, match="cannot be written"):
                await tell(experiments, session, 0.5)
            assert (await asked(experiments, session, "info"))["current_strat_data_pts"] == 0
        assert state(experiments) == before
        second = await asked(experiments, session, "ask")
        await tell(experiments, session, first["config"]["x"][0])
        after = state(experiments)
    async with started(path) as again:
        assert state(again) == after
        assert list(again.experiments[0].pending) == [0, 1]  # the recorded y differs
    assert first != second


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    try:

        @on_loop
        async def run() -> None:
            async with started(disk / "experiments.db") as experiments:
                session = experiments.session()
                await asked(experiments, session, "setup", **SETUP)
                answered, why = 0, ""
                while not why:
                    try:
                        await tell(experiments, session, 0.25)
                        answered += 1
                    except Unavailable as error:
                        why = error.message
                assert "No space left" in why
                filler = disk / "filler"
                left = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
                filler.write_bytes(b"x" * left)
                for _ in range(3):
                    with pytest.raises(Unavailable, match="cannot be written"):
                        await tell(experiments, session, 0.25)
                info = await asked(experiments, session, "info")
                assert info["current_strat_data_pts"] == answered
                filler.unlink()
                before = state(experiments)
            assert await kept(disk / "experiments.db") == before

        run()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_one_point_is_told_once_whoever_is_quick(path: Path) -> None:
    async with begun(path) as (experiments, session):
        config = (await asked(experiments, session, "ask", num_points=2))["config"]
        message = {"config": {k: v[0] for k, v in config.items()}, "outcome": 1}
        tells = (asked(experiments, session, "tell", **message) for _ in range(20))
        await asyncio.gather(*tells)
        experiment = experiments.experiments[0]
        assert experiment.told == 20
        assert list(experiment.pending) == [1]
    ids = [id for event in read_journal(path) for id in getattr(event, "ids", ())]
    assert sorted(str(id) for id in ids) == ["0", "0", "1"] + ["None"] * 19


async def test_whoever_leaves_leaves_nothing_half_done(path: Path) -> None:
    async with begun(path) as (experiments, session):
        for k in range(60):
            kind = ("ask", "tell")[k % 2]
            message = {"config": {"x": 0.5, "y": 0}, "outcome": 1} if kind == "tell" else {}
            request = AepsychRequest(kind, message, {})
            leaving = asyncio.create_task(experiments.handle(session, request))
            for _ in range(k // 4):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait({leaving})
        assert not experiments.waits(0)
        assert (await asked(experiments, session, "ask"))["num_points"] == 1
    assert await kept(path) == state(experiments)
    assert experiments.experiments[0].told > 0


async def test_stop_keeps_what_is_on_its_way(path: Path) -> None:
    async with begun(path) as (experiments, session):
        tells = [asyncio.create_task(tell(experiments, session, k / 50)) for k in range(50)]
        await until(lambda: experiments.experiments[0].told > 3)
    ends = await asyncio.gather(*tells, return_exceptions=True)
    answered = sum(end is None for end in ends)
    assert all(end is None or isinstance(end, Unavailable) for end in ends)
    async with started(path) as again:
        assert 3 < again.experiments[0].told == answered < 50


async def test_asks_of_one_experiment_go_on_from_one_another(path: Path) -> None:
    async with begun(path, in_processes=True) as (experiments, session):
        first = await asked(experiments, session, "ask")
        (pid,) = experiments.pids.values()
        os.kill(pid, signal.SIGSTOP)
        asks = [asyncio.create_task(asked(experiments, session, "ask")) for _ in range(3)]
        await until(lambda: experiments.waits(0))
        await tell(experiments, session, 0.5)  # waits for none of them
        assert experiments.experiments[0].asked == 1
        os.kill(pid, signal.SIGCONT)
        given = [first, *await asyncio.gather(*asks)]
        assert len({str(answer["config"]) for answer in given}) == 4
        assert experiments.experiments[0].asked == 4


async def test_events_from_inside(path: Path) -> None:
    async with begun(path) as (experiments, session):

        def events(experiment: Experiment, points: np.ndarray[Any, Any]) -> Sequence[Event]:
            return [
                Asked(experiment=0, time=1.0, points=points, ids=(experiment.asked,), strategy=0),
                Finished(experiment=0, time=1.0, strategy=0),
            ]

        async def one() -> None:
            async with experiments.turn(0):
                work = experiments.experiments[0].generate(1)
                made = await experiments.execute(0, work)
                assert isinstance(made, Generated)
                await experiments.record(0, lambda e: events(e, made.points))

        await asyncio.gather(one(), one(), asked(experiments, session, "ask"))
        assert list(experiments.experiments[0].pending)[-1] == 2
        (failed,) = await experiments.record(
            0, lambda e: [Failed(experiment=0, time=2.0, ids=(2,), error="it broke")]
        )
        assert isinstance(failed, Failed)
        assert 2 not in experiments.experiments[0].pending
        assert await experiments.record(0, lambda e: []) == ()
        before = state(experiments)
    with pytest.raises(Unavailable, match="stops"):
        await experiments.record(0, lambda e: events(e, np.zeros((1, 1, 2))))
    assert await kept(path) == before


async def test_a_surrogate_is_made_ready_at_the_setup(path: Path) -> None:
    model = {"generator": "OptimizeAcqfGenerator", "model": "GPRegressionModel"}
    config = {**CONFIG, "go_on": {**model, "acqf": "qUpperConfidenceBound"}}

    async with begun(path) as (experiments, session):
        await asked(experiments, session, "setup", config_dict=config)
        assert experiments._fitters.parent_pid is not None, "it loads the libraries"


async def test_what_a_status_shows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.experiment.host.SHOWN", 2)

    async with started(path) as experiments:
        session = experiments.session()
        for _ in range(3):
            await asked(experiments, session, "setup", **SETUP)
        await asked(experiments, session, "ask")
        shown = json.loads(json.dumps(experiments.status()))
        assert [(row["number"], row["asked"]) for row in shown] == [(1, 0), (2, 1)]


async def test_commands_for_the_closed_loop(path: Path) -> None:
    class Loops:
        async def command(self, command: RunCommand, known: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"did": command.action, "budget": command.budget, "number": known["number"]}

    async with started(path) as experiments:
        session = experiments.session()
        await asked(experiments, session, "setup", **WITH_FARM)
        assert (await asked(experiments, session, "status"))["told"] == 0
        with pytest.raises(UnsupportedFeature, match="farm serve MODEL --aepsych"):
            await asked(experiments, session, "run")
        experiments.accept_commands(Loops())
        answer = await asked(experiments, session, "run", budget=5)
        assert answer == {"did": RunAction.RUN, "budget": 5, "number": 0}


def test_a_journal_of_experiments_that_cannot_be(path: Path) -> None:
    journal = ExperimentJournal(path)
    journal.append([Finished(experiment=3, time=0.0, strategy=0)]).result(LIMIT_S)
    journal.close()
    with pytest.raises(Unavailable, match="experiment 3"):
        asyncio.run(kept(path))
    ExperimentJournal(path).close()  # not in use


async def test_what_is_understood_as_something_else_is_in_the_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common = {k: v for k, v in CONFIG["common"].items() if k != "outcome_types"}
    older = {"config_dict": {**CONFIG, "common": {**common, "outcome_type": "single_continuous"}}}

    async with started(path) as experiments:
        await asked(experiments, experiments.session(), "setup", **older)
    (record,) = caplog.records
    assert record.getMessage().startswith("experiment 0: ")
    assert "single_continuous" in record.getMessage()


MANY = 50_000


def trials(count: int) -> dict[str, Any]:
    xs = [number / count for number in range(count)]
    return {"config": {"x": xs, "y": [0.5] * count}, "outcome": xs, "seconds": xs}


@pytest.mark.slow
async def test_a_tell_of_very_many_trials_is_applied_in_slices(path: Path) -> None:
    async with begun(path) as (experiments, session):
        telling = asyncio.create_task(asked(experiments, session, "tell", **trials(MANY)))
        told = [0]
        while not telling.done():
            await asyncio.sleep(0)
            told.append(experiments.experiments[0].told)
        assert await telling == {"trials_recorded": MANY, "model_data_added": MANY}
        assert told[-1] == MANY
        assert max(b - a for a, b in itertools.pairwise(told)) == TRIALS_AN_EVENT
    assert await kept(path) == state(experiments), "the journal has all of it"
    assert [len(event.points) for event in read_journal(path) if isinstance(event, Told)] == [
        TRIALS_AN_EVENT
    ] * (MANY // TRIALS_AN_EVENT)


async def test_a_long_tell_that_is_refused_leaves_nothing(path: Path) -> None:
    async with begun(path) as (experiments, session):
        wrong = trials(MANY)
        wrong["outcome"] = [*wrong["outcome"][:-1], "x"]
        with pytest.raises(InvalidInput, match="expected a number"):
            await asked(experiments, session, "tell", **wrong)
        assert experiments.experiments[0].told == 0
        assert not any(isinstance(event, Told) for event in read_journal(path))
