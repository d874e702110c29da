"""Reader processes: results, turns of clients, and every way in which readers end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.bodies.body import HeldBody
from farm.bodies.readers import Mistake, Readers, Reads
from farm.bodies.unpacking import Refused
from farm.call import Hints, ModelInfo, TensorInfo
from farm.errors import InvalidInput, InvalidRequest, Unavailable
from farm.protocols.umbridge.codec import decode_request
from tests.bodies import reader_jobs
from tests.support.coroutines import until, wait_until
from tests.support.ended import has_ended

INFO = ModelInfo("echo", (TensorInfo("x", (-1,)),), (TensorInfo("y", (-1,)),))
MODELS = {"echo": INFO}


def held(
    data: bytes, encoding: bytes = b"", limit: int = 1 << 30, *, in_memory: bool = False
) -> HeldBody:
    body = HeldBody(limit, len(data) if in_memory else 0)
    body.add(data)
    body.encoding = encoding
    return body


@pytest.fixture(autouse=True)
def _jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@asynccontextmanager
async def readers(**options: Any) -> AsyncIterator[Readers]:
    pool = Readers(**options)
    try:
        yield pool
    finally:
        pool.stop()


def asked(
    pool: Reads, function: Callable[..., Any], *arguments: Any, client: str = "a", name: str = ""
) -> asyncio.Future[Any]:
    """Return the outcome of a job; an exception is a value here."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pool.execute(function, *arguments, hints=Hints(name, end=client), done=future.set_result)
    if isinstance(pool, Readers):
        pool.check()
    return future


async def asked_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    async with readers(**options) as pool:
        return await asked(pool, function, *arguments)


def begun(path: str) -> Callable[[], bool]:
    """Whether the job that waits for `path` is running."""
    return lambda: os.path.exists(f"{path}.begun")


def end(path: str) -> None:
    """End the job that waits for `path`."""
    Path(path).touch()


async def test_a_body_is_read_elsewhere_and_its_arrays_are_mapped() -> None:
    numbers = np.random.default_rng(0).normal(size=50_000)
    text = b'{"name":"echo","input":[%b]}' % str(numbers.tolist()).encode()
    async with readers() as pool:
        for in_memory in (False, True):
            body = held(text, in_memory=in_memory)
            call = await asked(pool, decode_request, "/Evaluate", body, MODELS)
            assert call.model == "echo"
            assert np.array_equal(call.inputs[0], numbers)
            assert not call.inputs[0].flags.owndata


async def test_a_process_is_kept_and_replaced_when_it_was_killed() -> None:
    async with readers(most=2) as pool:
        assert pool.pids == []  # started when first needed
        first = await asked(pool, reader_jobs.pid_of, held(b""))
        assert first == await asked(pool, reader_jobs.pid_of, held(b""))
        assert pool.pids == [first] != [os.getpid()]
        os.kill(first, signal.SIGKILL)
        assert await asked(pool, reader_jobs.pid_of, held(b"")) != first


def test_it_works_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert asyncio.run(asked_once(reader_jobs.length_of, held(bytes(300_000)))) == 300_000


async def test_what_a_function_raises_is_what_done_gets() -> None:
    async with readers() as pool:
        error = await asked(pool, decode_request, "/Evaluate", held(b"{]"), MODELS)
        assert type(error) is InvalidRequest
        with pytest.raises(InvalidRequest) as here:
            decode_request("/Evaluate", b"{]", MODELS)
        assert error.message == here.value.message
        mistake = await asked(pool, reader_jobs.breaks, held(b""))
        assert type(mistake) is Mistake
        assert "ZeroDivisionError: a fault of farm's" in str(mistake)
        assert type(await asked(pool, reader_jobs.unknown, held(b""))) is Mistake


def swelling(packed: int, size: int) -> bytes:
    """A compressed body of about `packed` bytes that has `size` bytes unpacked."""
    return zlib.compress(os.urandom(packed) + bytes(size - packed))


async def test_a_compressed_body_is_unpacked_there_or_refused_as_it_is_here() -> None:
    async with readers() as pool:
        packed = held(swelling(1 << 20, 20 << 20), b"deflate")
        assert await asked(pool, reader_jobs.length_of, packed) == 20 << 20
        for data in (zlib.compress(bytes(20 << 20)), b"no zlib"):
            there, here = [
                await asked(each, reader_jobs.length_of, held(data, b"deflate", 10 << 20))
                for each in (pool, Reads())
            ]
            assert type(there) is Refused
            assert vars(there) == vars(here)


@pytest.mark.slow
def test_a_bomb_meets_the_limit_of_its_reader() -> None:
    bomb = held(swelling(5 << 20, 512 << 20), b"deflate", 4 << 30)
    error = asyncio.run(asked_once(reader_jobs.length_of, bomb, memory_bytes=512 << 20))
    assert type(error) is InvalidInput
    assert error.message == "the message takes more than 512 MiB to read or to write"
    error = asyncio.run(asked_once(reader_jobs.grown, held(b""), memory_bytes=1 << 30))
    assert type(error) is InvalidInput


def test_a_reader_goes_before_the_farm_when_memory_runs_out() -> None:
    limit, score = asyncio.run(asked_once(reader_jobs.limits, held(b""), memory_bytes=1 << 30))
    assert limit == 1 << 30
    assert int(score) >= 800


async def test_a_job_whose_reader_is_killed_is_tried_once_more_and_others_go_on(
    tmp_path: Path,
) -> None:
    async with readers(most=2) as pool:
        path = str(tmp_path / "died")
        assert await asked(pool, reader_jobs.dies_once, path, held(b"")) == "done"
        error = await asked(pool, reader_jobs.dies, held(b""))
        assert type(error) is Unavailable
        assert error.message == (
            "the process that reads long messages ended: killed (out of memory?)"
        )
        assert pool.pids == []
        assert await asked(pool, reader_jobs.length_of, held(b"abc")) == 3


async def test_a_job_that_takes_too_long_is_ended_and_not_tried_again() -> None:
    async with readers(time_limit_s=0.5) as pool:
        error = await asked(pool, reader_jobs.sleeps, held(b""))
        assert type(error) is Unavailable
        assert error.message == "the message was not read within 0 s"
        assert pool.pids == []


async def test_a_reader_that_has_nothing_to_do_ends() -> None:
    async with readers(idle_s=0.01) as pool:
        pid = await asked(pool, reader_jobs.pid_of, held(b""))
        await until(lambda: not pool.pids)
        assert has_ended(pid)


async def test_clients_take_turns_and_none_has_all_readers(tmp_path: Path) -> None:
    async with readers(most=2) as pool:
        order: list[str] = []

        def ask(client: str, name: str) -> str:
            path = str(tmp_path / name)
            done = asked(pool, reader_jobs.waits_for, path, client=client)
            done.add_done_callback(lambda _: order.append(name))
            return path

        a = [ask("greedy", f"a{i}") for i in range(4)]
        await until(begun(a[0]))
        assert len(pool.pids) <= 1  # the other one is reserved for other clients
        b = ask("modest", "b")
        await until(begun(b))
        c = ask("third", "c")
        end(a[0])
        # the third comes before the greedy client's second
        await until(begun(c))
        assert not begun(a[1])()
        for path in (b, c, *a[1:]):
            end(path)
        await until(lambda: len(order) == 6)
        assert [name for name in order if name[0] == "a"] == ["a0", "a1", "a2", "a3"]


async def test_names_take_turns_but_all_of_one_end_share_its_readers(tmp_path: Path) -> None:
    async with readers(most=2) as pool:
        jobs: list[asyncio.Future[Any]] = []

        def ask(name: str, job: str, client: str = "uid 1") -> str:
            path = str(tmp_path / job)
            jobs.append(asked(pool, reader_jobs.waits_for, path, client=client, name=name))
            return path

        first = ask("a", "a0")
        await until(begun(first))
        second, other = ask("a", "a1"), ask("b", "b0")
        hidden = [ask(f"new {i}", f"new{i}") for i in range(3)]
        assert len(pool.pids) <= 1  # none of the names gets the reader of other ends
        stranger = ask("a", "c0", client="uid 2")
        await until(begun(stranger))
        end(first)
        await until(begun(other))
        assert not begun(second)()
        for path in (stranger, other, second, *hidden):
            end(path)
        await asyncio.gather(*jobs)


async def test_a_job_that_is_taken_back_does_not_begin(tmp_path: Path) -> None:
    async with readers(most=1) as pool:
        path = str(tmp_path / "first")
        first = asked(pool, reader_jobs.waits_for, path)
        never: list[Any] = []
        cancel = pool.execute(
            reader_jobs.waits_for,
            str(tmp_path / "second"),
            hints=Hints(end="a"),
            done=never.append,
        )
        cancel()
        cancel()
        pool.check()
        end(path)
        await first
        assert await asked(pool, reader_jobs.length_of, held(b"a")) == 1
        assert never == []
        assert not begun(str(tmp_path / "second"))()


async def test_stopping_answers_everybody_and_leaves_nothing(tmp_path: Path) -> None:
    pool = Readers(most=2)
    jobs = [asked(pool, reader_jobs.waits_for, str(tmp_path / f"{i}")) for i in range(3)]
    await until(begun(str(tmp_path / "0")))
    (pid,) = pool.pids
    pool.stop()
    for error in await asyncio.gather(*jobs):
        assert type(error) is Unavailable
        assert "shutting down" in error.message
    with pytest.raises(Unavailable):
        asked(pool, reader_jobs.length_of, held(b""))
    assert pool.pids == []
    assert has_ended(pid)


OWNER = """
import asyncio, time
from farm.bodies.readers import Readers
from farm.call import Hints
from tests.bodies import reader_jobs

async def main():
    pool = Readers(most=2)
    pool.execute(reader_jobs.waits_for, PATH, hints=Hints(end="a"), done=print)
    while not pool.pids:
        await asyncio.sleep(0.01)
    print(pool.pids[0], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_nothing_is_left_after_sigkill_of_the_front_door(tmp_path: Path) -> None:
    path = tmp_path / "never"
    program = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("PATH", repr(str(path)))],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert program.stdout is not None
    with program:
        pid = int(program.stdout.readline())
        wait_until(begun(str(path)))
        program.kill()
    wait_until(lambda: has_ended(pid))


async def test_here_does_the_same() -> None:
    here = Reads()
    outcomes: list[Any] = []
    packed = held(zlib.compress(b"abc"), b"deflate")
    here.execute(reader_jobs.length_of, packed, hints=Hints(end="a"), done=outcomes.append)
    here.execute(reader_jobs.breaks, held(b""), hints=Hints(end="a"), done=outcomes.append)
    here.execute(reader_jobs.length_of, packed, hints=Hints(end="a"), done=outcomes.append)()
    assert outcomes == []
    await asyncio.sleep(0)
    assert outcomes[0] == 3
    assert type(outcomes[1]) is ZeroDivisionError
    assert len(outcomes) == 2
