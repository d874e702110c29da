"""Actions of a farm's owner, its restarts, and the logs of its workers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from farm.call import WorkerInfo
from farm.client import connect
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import FarmError, InvalidInput, Unavailable, UnsupportedFeature
from farm.machine import keeper as parent
from farm.machine.keeper_line import keeper
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.server.lifecycle import (
    BYTES,
    GONE_KEPT,
    NamedWorkers,
    offer_stop,
    read_log,
    show_restarts,
)
from farm.settings import Settings
from farm.transports.peers import Peers
from farm.transports.threads import LocalTransport
from farm.wire import messages as wire
from farm.wire.messages import Kind
from tests.server.test_farm import Double
from tests.support import scripted_peers as peers
from tests.support.coroutines import until, wait_until
from tests.support.dispatcher_farm import BEAM


@pytest.mark.slow
def test_the_answer_says_what_has_to_end(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    settings = Settings(port=0, dir=tmp_path / "run", workers=2, grace_s=7.0)
    served = Farm([str(tmp_path / "beam.py")], settings)
    asked: list[bool] = []
    with running(served), connect(tmp_path / "run") as client:
        offer_stop(served.dispatcher, settings.grace_s, asked.append)
        wait_until(lambda: len(client.status()["workers"]) == 2)
        for number, (now, grace_s) in enumerate((("true", 0.0), ("false", 7.0), ("", 7.0))):
            told = client.ask("stop", now=now)
            assert {k: told[k] for k in ("processes", "running", "queued", "workers", "jobs")} == {
                "processes": [os.getpid()],
                "running": 0,
                "queued": 0,
                "workers": 2,
                "jobs": 0,
            }
            assert told["grace_s"] == grace_s
            wait_until(lambda number=number: len(asked) > number)  # type: ignore[misc]  # a default is bound
    assert asked == [True, False, False]


def test_a_farm_in_another_program_offers_no_stop(tmp_path: Path) -> None:
    with running(Farm([], Settings(dir=tmp_path), objects={"Double": Double()}, doors=False)):
        client = connect(tmp_path)
        with client, pytest.raises(UnsupportedFeature, match="no question 'stop'"):
            client.ask("stop")


def test_a_farm_without_a_keeper_shows_none() -> None:
    dispatcher = Dispatcher([])
    show_restarts(dispatcher)
    assert "restarts" not in dispatcher.snapshot()
    assert dispatcher.snapshot()["events"] == []


@pytest.mark.parametrize("count", [0, 2])
def test_restarts_are_shown(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    keeper.cache_clear()
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(parent.LINE, str(theirs.detach()))
    ours.sendall(f"restarts {count} was killed by signal 9 (SIGKILL)\ngo\n".encode())
    dispatcher = Dispatcher([])
    try:
        show_restarts(dispatcher)
        snapshot = dispatcher.snapshot()
        if not count:
            assert "restarts" not in snapshot
            return
        shown = snapshot["restarts"]
        assert (shown["count"], shown["reason"]) == (2, "was killed by signal 9 (SIGKILL)")
        assert abs(shown["time"] - time.time()) < 60.0
        (event,) = snapshot["events"]
        assert event["text"] == "it was killed by signal 9 (SIGKILL); restart 2"
    finally:
        line = keeper()
        assert line is not None
        line._line.close()
        ours.close()
        keeper.cache_clear()
    assert parent.LINE not in os.environ


def named() -> NamedWorkers:
    return NamedWorkers(Dispatcher([]), Peers(), Path())


async def test_workers_are_found_by_name_or_its_beginning() -> None:
    known = named()
    infos = [WorkerInfo(name, ()) for name in ("n1/1-a", "n1/11-b", "n1/11-b2", "n2/5-c", "n2/6-d")]
    for info in infos:
        known.joined(info, None)
    assert known.find("n1/11-b") is infos[1]  # although another one begins so
    assert known.find("n2/5") is infos[3]
    with pytest.raises(InvalidInput, match="2 workers begin with n2: n2/5-c, n2/6-d"):
        known.find("n2")
    with pytest.raises(InvalidInput, match=r"5 workers begin with n: .* and 2 more"):
        known.find("n")
    for wrong in ("n3", "", "n2/5-cc"):
        with pytest.raises(InvalidInput, match="has no worker"):
            known.find(wrong)


async def test_those_that_left_are_found_if_wanted_and_after_those_that_are_here() -> None:
    known = named()
    here, left = WorkerInfo("n1/2-b", ()), WorkerInfo("n1/1-a", ())
    for info in (here, left):
        known.joined(info, None)
    known.left(left, Departure("killed"))
    assert known.find("n1", gone=True) is here
    assert known.find("n1/1-a", gone=True) is left
    with pytest.raises(InvalidInput, match="worker n1/1-a has left"):
        known.find("n1/1-a")


async def test_not_all_that_ever_left_are_kept() -> None:
    known = named()
    for number in range(GONE_KEPT + 5):
        info = WorkerInfo(f"n1/{number}-a", ())
        known.joined(info, None)
        known.left(info, Departure("drained", drained=True))
    assert known.find(f"n1/{GONE_KEPT + 4}-a", gone=True)
    assert known.find("n1/5-a", gone=True)
    with pytest.raises(InvalidInput):
        known.find("n1/4-a", gone=True)


W = "node1/1-a"


class Local(peers.Farm):
    """A farm at a unix socket in the folder of the test."""


@asynccontextmanager
async def farm_with_a_worker(folder: Path, **labels: str) -> AsyncIterator[peers.Farm]:
    """A farm at a unix socket in this folder, whose only worker has these labels."""
    Local.folder = folder
    async with Local.up() as farm:
        NamedWorkers(farm.dispatcher, farm.transport, folder)
        peer = farm.peer(W)
        peer.send(wire.encode_join("a", WorkerInfo(W, (peers.CUBE,), labels=labels)))
        await peer.hear(Kind.WELCOME)
        yield farm


async def test_a_worker_is_drained(tmp_path: Path) -> None:
    async with farm_with_a_worker(tmp_path) as farm:
        assert await farm.dispatcher.questions.ask("drain", {"worker": "node1"}) == {"draining": W}
        await farm.peers[0].hear(Kind.STOP)
        assert farm.events("drain") == ["the owner asks it to leave"]
        with pytest.raises(InvalidInput, match="has no worker"):
            await farm.dispatcher.questions.ask("drain", {"worker": "node2"})


async def test_a_worker_is_restarted_by_its_supervisor(tmp_path: Path) -> None:
    async with farm_with_a_worker(tmp_path, supervisor="node1/7") as farm:
        restart = {"worker": W}
        with pytest.raises(Unavailable, match=r"supervisor node1/7 .* is not connected"):
            await farm.dispatcher.questions.ask("restart", restart)
        supervisor = farm.peer("supervisor:node1/7")
        supervisor.say(Kind.LOST)
        await until(lambda: farm.transport._supervisors)
        assert await farm.dispatcher.questions.ask("restart", restart) == {"restarting": W}
        assert (await supervisor.hear(Kind.RESTART)).data == [W]


async def test_what_farm_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with farm_with_a_worker(tmp_path) as farm:
        with pytest.raises(UnsupportedFeature, match="no supervisor that starts it again"):
            await farm.dispatcher.questions.ask("restart", {"worker": W})
        thread = WorkerInfo("thread", (peers.CUBE,))
        farm.dispatcher.worker_joined(thread, LocalTransport({}))
        with pytest.raises(UnsupportedFeature, match="a thread of the front door"):
            await farm.dispatcher.questions.ask("drain", {"worker": "thread"})


async def test_drains_and_restarts_are_for_the_owner_only() -> None:
    dispatcher = Dispatcher([])
    NamedWorkers(dispatcher, Peers(), Path())
    changes = map(dispatcher.questions.changes, ("drain", "restart", "log", "logs"))
    assert [*changes] == [True, True, False, False]


NAME = "worker-node1-7-0.log"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / NAME
    path.write_text("one\ntwo\nthree")
    return path


def test_the_last_lines(log: Path) -> None:
    assert read_log(log, lines=2) == ("two\nthree", 13)
    assert read_log(log, lines=100) == ("one\ntwo\nthree", 13)
    log.write_text("")
    assert read_log(log, lines=2) == ("", 0)
    log.write_bytes(b"x" * 3 * BYTES)
    assert read_log(log, lines=1) == ("x" * BYTES, 3 * BYTES), "a line longer than an answer"


def test_what_is_added(log: Path) -> None:
    assert read_log(log, after=13) == ("", 13)
    with log.open("a") as file:
        file.write("\nfour\n")
    assert read_log(log, after=13) == ("\nfour\n", 19)
    log.write_text("new")  # another file in its place
    assert read_log(log, after=19) == ("new", 3)


def test_an_answer_is_bounded(log: Path) -> None:
    log.write_bytes(b"".join(b"%07d\n" % i for i in range(BYTES)))
    size = log.stat().st_size
    text, end = read_log(log, lines=10**6)
    assert text.splitlines()[0].isdecimal()
    assert len(text) <= BYTES
    assert end == size
    text, end = read_log(log, after=8)
    assert (text[:8], len(text), end) == ("0000001\n", BYTES, 8 + BYTES)


def test_characters_are_not_cut(log: Path) -> None:
    whole = "déjà vu €".encode()
    log.write_bytes(whole[:-1])
    assert read_log(log, lines=1) == ("déjà vu ", len(whole) - 3)
    log.write_bytes(whole + b"\xff.")
    assert read_log(log, after=len(whole) - 3) == ("€\N{REPLACEMENT CHARACTER}.", len(whole) + 2)


def test_links_and_other_files_are_not_read(log: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = log.with_name("worker-link.log")
    link.symlink_to(secret)
    fifo = log.with_name("worker-fifo.log")
    os.mkfifo(fifo)
    for path in (link, fifo, tmp_path):
        with pytest.raises(OSError, match=r".+"):
            read_log(path, lines=1)
        with pytest.raises(OSError, match=r".+"):
            read_log(path, after=0)


class Asked:
    """The questions of a farm with workers that have these labels."""

    def __init__(self, folder: Path, **labels: dict[str, str]) -> None:
        self.dispatcher = Dispatcher([])
        self.workers = NamedWorkers(self.dispatcher, Peers(), folder)
        for name, its in labels.items():
            self.workers.joined(WorkerInfo(name, (), labels=its, host="node1"), None)

    async def __call__(self, question: str, **arguments: str) -> Any:
        return await self.dispatcher.questions.ask(question, arguments)


async def test_a_log_is_read_and_followed(log: Path, tmp_path: Path) -> None:
    ask = Asked(tmp_path, w={"log": NAME})
    first = await ask("log", worker="w", lines="1")
    assert first == {"worker": "w", "text": "three", "next": "13"}
    with log.open("a") as file:
        file.write("!\n")
    assert (await ask("log", worker="w", after=first["next"]))["text"] == "!\n"
    assert (await ask("log", worker="w", after="0"))["text"] == "one\ntwo\nthree!\n"


async def test_all_logs_are_listed_those_of_workers_that_are_here_first(
    log: Path, tmp_path: Path
) -> None:
    its = {"log": NAME}
    ask = Asked(tmp_path, a=its, b=its, c=its, none={}, gone={"log": "worker-node1-9-9.log"})
    for name in ("a", "b"):
        ask.workers.left(WorkerInfo(name, (), labels=its), Departure("killed"))
    rows = await ask("logs")
    assert [(row["worker"], row["here"]) for row in rows] == [
        ("c", True),
        ("b", False),
        ("a", False),
    ]
    assert {(row["file"], row["bytes"]) for row in rows} == {(NAME, 13)}


async def test_the_output_of_a_job_is_that_of_its_workers(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "77.out").write_text("hello\n")
    labels = {"job": "77", "kind": "w1"}
    ask = Asked(tmp_path, w=labels, other={"job": "77"}, wrong={"job": "../secret", "kind": "k"})
    assert (await ask("log", worker="w"))["text"] == "hello\n"
    for worker in ("other", "wrong"):
        with pytest.raises(UnsupportedFeature):
            await ask("log", worker=worker)


@pytest.mark.parametrize(
    "name", ["", "../farm.json", "/etc/passwd", "worker-../../farm.log", "worker-a.log\n", "x.log"]
)
async def test_a_worker_cannot_name_another_file(name: str, log: Path, tmp_path: Path) -> None:
    ask = Asked(tmp_path, w={"log": name})
    with pytest.raises(UnsupportedFeature, match="in no file that the farm knows"):
        await ask("log", worker="w")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, InvalidInput),
        ({"worker": NAME}, InvalidInput),
        ({"worker": "../x"}, InvalidInput),
        ({"worker": "w", "lines": "-1"}, InvalidInput),
        ({"worker": "w", "lines": "100000"}, InvalidInput),
        ({"worker": "w", "lines": "ten"}, InvalidInput),
        ({"worker": "w", "after": "-5"}, InvalidInput),
        ({"worker": "w", "after": "9" * 30}, InvalidInput),
        ({"worker": "gone"}, Unavailable),
    ],
)
async def test_wrong_questions_are_refused(
    arguments: dict[str, str], error: type[FarmError], log: Path, tmp_path: Path
) -> None:
    ask = Asked(tmp_path, w={"log": NAME}, gone={"log": "worker-node1-9-9.log"})
    with pytest.raises(error):
        await ask("log", **arguments)
