"""Logs of workers: their ends, what follows, and that no other file is ever read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import FarmError, InvalidInput, Unavailable, UnsupportedFeature
from farm.server.lifecycle import BYTES, NamedWorkers, read_log
from farm.transports.peers import Peers
from tests.support.coroutines import on_loop

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


def test_a_line_longer_than_an_answer_is_shown_in_part(log: Path) -> None:
    log.write_bytes(b"x" * 3 * BYTES)
    assert read_log(log, lines=1) == ("x" * BYTES, 3 * BYTES)


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


@on_loop
async def test_a_log_is_read_and_followed(log: Path, tmp_path: Path) -> None:
    ask = Asked(tmp_path, w={"log": NAME})
    first = await ask("log", worker="w", lines="1")
    assert first == {"worker": "w", "text": "three", "next": "13"}
    with log.open("a") as file:
        file.write("!\n")
    assert (await ask("log", worker="w", after=first["next"]))["text"] == "!\n"
    assert (await ask("log", worker="w", after="0"))["text"] == "one\ntwo\nthree!\n"


@on_loop
async def test_all_logs_are_listed(log: Path, tmp_path: Path) -> None:
    ask = Asked(tmp_path, w={"log": NAME}, none={}, gone={"log": "worker-node1-9-9.log"})
    (row,) = await ask("logs")
    assert (row["worker"], row["here"], row["file"], row["bytes"]) == ("w", True, NAME, 13)


@on_loop
async def test_the_logs_of_workers_that_are_here_come_first(log: Path, tmp_path: Path) -> None:
    ask = Asked(tmp_path, a={"log": NAME}, b={"log": NAME}, c={"log": NAME})
    for name in ("a", "b"):
        ask.workers.left(WorkerInfo(name, (), labels={"log": NAME}), Departure("killed"))
    rows = [(row["worker"], row["here"]) for row in await ask("logs")]
    assert rows == [("c", True), ("b", False), ("a", False)]


@on_loop
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
@on_loop
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
@on_loop
async def test_wrong_questions_are_refused(
    arguments: dict[str, str], error: type[FarmError], log: Path, tmp_path: Path
) -> None:
    ask = Asked(tmp_path, w={"log": NAME}, gone={"log": "worker-node1-9-9.log"})
    with pytest.raises(error):
        await ask("log", **arguments)
