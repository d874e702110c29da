"""Commands of a batch system: their output, their failures, and that none outlives its limit."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.provision.batch.commands import (
    IDS_AT_ONCE,
    IN_DOUBT,
    CommandFailed,
    Commands,
    NotStarted,
    json_object,
    only_id,
    parts,
    quoted,
    text_of,
)
from farm.provision.batch.system import BatchError
from farm.provision.batch.systems import PBS
from tests.support.ended import has_ended
from tests.support.running_farm import wait_until
from tests.support.time_limits import scaled


def run(*command: str, feed: str = "", timeout_s: float = 60.0) -> str:
    return asyncio.run(Commands(dict, timeout_s=timeout_s).run(*command, feed=feed))


def test_a_command_gets_its_input_and_environment() -> None:
    commands = Commands(lambda environment: {"PATH": environment["PATH"], "X": "x"})
    assert asyncio.run(commands.run("sh", "-c", "cat; echo $X", feed="in ")) == "in x\n"


def test_a_failing_command_is_told_in_its_own_words() -> None:
    with pytest.raises(BatchError, match=r"^no such account$"):
        run("sh", "-c", "printf 'no such\n account' >&2; exit 1")
    with pytest.raises(BatchError, match="sh ended with exit code 7"):
        run("sh", "-c", "exit 7")
    with pytest.raises(NotStarted, match="no-such-program cannot be started"):
        run("no-such-program")


def test_the_output_of_a_failing_command_can_be_used() -> None:
    with pytest.raises(CommandFailed, match=r"^one is unknown$") as caught:
        run("sh", "-c", "echo another; echo one is unknown >&2; exit 1")
    assert caught.value.output == "another\n"


def test_what_a_command_writes_to_stderr_can_be_part_of_its_output() -> None:
    command = ("sh", "-c", "echo out; echo none found >&2")
    assert asyncio.run(Commands(dict).run(*command)) == "out\n"
    assert asyncio.run(Commands(dict).run(*command, with_errors=True)) == "out\nnone found\n"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert run("printf", r"a\377\000b") == "a\ufffd\0b"


def test_missing_commands_are_named() -> None:
    with pytest.raises(Unavailable, match=r"^X's commands .* machine: no-x, no-y; see there$"):
        Commands.of(replace(PBS, title="X", commands=("sh", "no-x", "no-y"), where="; see there"))
    present = Commands.of(replace(PBS, commands=("sh",)))
    assert asyncio.run(present.run("sh", "-c", "echo in")) == "in\n"


def test_each_id_is_in_one_of_the_parts() -> None:
    ids = [str(number) for number in range(2 * IDS_AT_ONCE + 1)]
    found = list(parts(ids))
    assert [word for part in found for word in part] == ids
    assert [len(part) for part in found] == [IDS_AT_ONCE, IDS_AT_ONCE, 1]
    assert list(parts([])) == []


def test_a_command_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    script, limit_s = f"sleep 600 & echo $! > {tmp_path}/pid; wait", round(scaled(1.0))
    with pytest.raises(BatchError, match=rf"sh did not answer in {limit_s} s"):
        run("sh", "-c", script, timeout_s=limit_s)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(pid), "the end of the sleep")


def test_ctrl_c_does_not_reach_a_command() -> None:
    """The terminal sends SIGINT to the group of the front door; a submission must not break off."""
    group = int(run("sh", "-c", "ps -o pgid= -p $$ || cut -d' ' -f5 /proc/$$/stat"))
    assert group != os.getpgrp()


@pytest.mark.slow
def test_commands_that_hang_do_not_hold_up_others() -> None:
    async def both() -> str:
        commands = Commands(dict, timeout_s=5.0)
        hanging = [asyncio.create_task(commands.run("sleep", "600")) for _ in range(5)]
        answer = await commands.run("echo", "here")
        assert not any(task.done() for task in hanging)
        for result in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(result, BatchError)
        return answer

    assert asyncio.run(both()) == "here\n"


def test_a_command_that_is_not_awaited_any_more_is_killed(tmp_path: Path) -> None:
    """A thread that waits for it would delay the end of the program."""
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"

    async def scene() -> list[int]:
        task = asyncio.create_task(Commands(dict).run("sh", "-c", script))
        await asyncio.to_thread(wait_until, pids.exists, "the command")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [int(pid) for pid in pids.read_text().split()]

    both = asyncio.run(scene())
    wait_until(lambda: all(map(has_ended, both)), "the end of both")


# What commands print: JSON among banners, and ids

BANNER = "*** maintenance {tonight} ***\n{not json}\n"


def test_an_object_is_found_among_banners() -> None:
    assert json_object(f'{BANNER}{{"jobs": [1],\n "x": "a\nb"}}\n{BANNER}', "jobs")["jobs"] == [1]
    assert json_object('{"other": 1}\n  {"jobs": []}', "jobs") == {"jobs": []}


@pytest.mark.parametrize(
    "text", ["", BANNER, '{"jobs": [1', '{"other": 1}', '{"jobs": ["\0"]}', 'x {"jobs": []}', "[]"]
)
def test_what_is_no_such_object_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"no such object|NUL"):
        json_object(text, "jobs")


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("7.server\n", "7"),
        (f"{BANNER} 7.server \n{BANNER}", "7"),
        ("7.server\n7.server\n", "7"),
        ("7.server\n8.server\n", ""),
        ("", ""),
        ("see 7.server\n", ""),
    ],
)
def test_only_one_id_counts(text: str, job_id: str) -> None:
    assert only_id(text, re.compile(r"(\d+)\.\w+")) == job_id


def test_values_are_texts_on_one_line() -> None:
    row = {"a": " x\n y ", "b": None, "c": 7}
    assert [text_of(row, key) for key in "abcd"] == ["x y", "", "7", ""]
    assert len(quoted("x" * 500)) == 82


@pytest.mark.parametrize("text", ["Connection timed out", "End of File", "Broken pipe"])
def test_messages_after_which_a_job_may_exist(text: str) -> None:
    assert IN_DOUBT.search(text)
    assert not IN_DOUBT.search("Unknown queue")
