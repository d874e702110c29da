"""Names of chains for blocks of code, as the farm sees them."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import Hints
from farm.client import Client, RemoteModel, connect
from farm.client.names import GivenNames, with_names
from farm.errors import ModelFailed
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.dispatcher_farm import Served

GIVEN = Hints("given", 3, chain="of connect")
FAILS = np.array([-1.0])
"""Inputs for which `moody` raises."""


@pytest.fixture
def model(client: Client) -> RemoteModel:
    return client.model("affine")


def counted(client: Client, of: str) -> dict[tuple[str, str | None], int]:
    """Return how many calls the farm has answered to chains whose names contain `of`."""
    rows = client.status()["chains"]
    found = {(row["client"], row["chain"]): row["done"] for row in rows}
    return {names: done for names, done in found.items() if of in "".join(map(str, names))}


def names() -> tuple[str, str | None]:
    hints = with_names(GIVEN)
    assert hints.priority == 3
    return hints.client, hints.chain


def test_a_block_names_every_kind_of_call(client: Client, model: RemoteModel) -> None:
    chain = f"chain {uuid.uuid4()}"
    with farm.chain(chain):
        model(np.zeros(4))
        model.submit(np.zeros(4)).result()
        model.gradient(0, 0, np.zeros(4), np.ones(2))
        model.value_and_gradient(0, 0, np.zeros(4), np.ones(2))  # runs as two tasks
        model.map(np.zeros((5, 4)))
        later = model.map([np.zeros(4)] * 2)
        model.describe({"add": 1.0})
    model(np.zeros(4))
    assert [list(y) for y in later] == [[0.0, 0.0]] * 2  # sent in the block, read after it
    ((_, done),) = counted(client, chain).items()
    assert done == 11
    assert all(row["queued"] == row["in_flight"] == 0 for row in client.status()["chains"])


def test_the_names_of_connect_hold_where_no_other_is_given(target: Any) -> None:
    program = f"{uuid.uuid4()}"
    with connect(target, client=program, priority=-1) as client:
        model = client.model("affine")
        model(np.zeros(4))
        with farm.chain("a"):
            model(np.zeros(4))
            with farm.chain("b", client=f"{program} inner"):
                model(np.zeros(4))
            model(np.zeros(4))
        assert counted(client, program) == {
            (program, None): 1,
            (program, "a"): 2,
            (f"{program} inner", "b"): 1,
        }


@farm.chain("inner", client="")
def fail() -> None:
    raise RuntimeError(names())


def test_an_inner_block_replaces_the_names_that_it_gives() -> None:
    assert names() == ("given", "of connect")
    with farm.chain("outer", client="sampler"):
        assert names() == ("sampler", "outer")
        with farm.chain(""):
            assert names() == ("sampler", "")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="inner"):
                fail()
        assert names() == ("sampler", "outer")
    assert names() == ("given", "of connect")
    assert with_names(GIVEN) is GIVEN


def test_threads_have_names_of_their_own() -> None:
    seen = {}
    meeting = threading.Barrier(3)

    def work(i: int) -> None:
        with farm.chain(f"chain {i}"):
            meeting.wait(LIMIT_S)
            seen[i] = names()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    with farm.chain("of the main thread"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == {i: ("given", f"chain {i}") for i in range(3)}


def test_asyncio_tasks_inherit_names_and_have_their_own() -> None:
    async def work(i: int) -> list[tuple[str, str | None]]:
        seen = [names()]
        with farm.chain(f"chain {i}"):
            await asyncio.sleep(0)
            return [*seen, names()]

    async def main() -> list[list[tuple[str, str | None]]]:
        with farm.chain("outer"):
            return await asyncio.gather(*(work(i) for i in range(3)))

    assert asyncio.run(main()) == [[("given", "outer"), ("given", f"chain {i}")] for i in range(3)]


def _called(target: Any, chain: str = "") -> None:
    with connect(target) as client:
        model = client.model("affine")
        model(np.zeros(4))
        if chain:
            with farm.chain(chain):
                model(np.zeros(4))


def test_processes_name_their_chains(served: Served) -> None:
    chain = f"{uuid.uuid4()}"
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    with farm.chain(f"{chain} inherited"):
        processes = [
            fork.Process(target=_called, args=(served.folder,)),
            spawn.Process(target=_called, args=(served.folder, f"{chain} own")),
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(3 * LIMIT_S)
    assert [process.exitcode for process in processes] == [0, 0]
    with connect(served.folder) as client:
        assert counted(client, chain) == {("", f"{chain} inherited"): 1, ("", f"{chain} own"): 1}


def logs(client: Client) -> str:
    return "".join(client.log(worker["name"]) for worker in client.status()["workers"])


def test_the_id_of_a_block_is_in_the_workers_log_and_on_errors(client: Client) -> None:
    moody = client.model("moody")
    outer, inner = (f"call-{uuid.uuid4()}" for _ in range(2))
    with farm.call_id(outer):
        with farm.call_id(inner), pytest.raises(ModelFailed) as first:
            moody(FAILS)
        with pytest.raises(ModelFailed) as second:
            moody(FAILS)
    with pytest.raises(ModelFailed) as third:
        moody(FAILS)
    assert [each.value.call_id for each in (first, second, third)] == [inner, outer, ""]
    notes = ["".join(getattr(each.value, "__notes__", [])) for each in (first, second, third)]
    found = [(inner in note, outer in note, "id of the call" in note) for note in notes]
    assert found == [(True, False, True), (False, True, True), (False, False, False)]
    wait_until(lambda: outer in logs(client))
    heads = [line for line in logs(client).splitlines() if "farm.worker.runner [" in line]
    assert [inner in line for line in heads if inner in line or outer in line] == [True, False]


def test_an_id_is_of_visible_characters() -> None:
    for wrong in ("", "a b", "a\n", "x" * 129, 7):
        with (
            pytest.raises(ValueError, match="expected 1 to 128 visible ASCII"),
            farm.call_id(wrong),  # type: ignore[arg-type]  # what is tested
        ):
            pass


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: farm.chain(None).__enter__(),  # type: ignore[arg-type]  # what is tested
        lambda: farm.chain(7).__enter__(),  # type: ignore[arg-type]
        lambda: farm.chain("a", client=7).__enter__(),  # type: ignore[arg-type]
        lambda: farm.Executor(client=b"x"),  # type: ignore[arg-type]
        lambda: farm.Executor(chain=1),  # type: ignore[arg-type]
    ],
)
def test_a_name_is_a_text(wrong: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"expected a text"):
        wrong()


def test_the_number_of_a_thread_replaces_all_its_places() -> None:
    given = GivenNames("run {i}", "{i} of {n} {i}")
    assert given.of_thread(12) == ("run 12", "12 of {n} 12")
    assert given.of_no_thread() == (None, None)
    assert (
        GivenNames("run", None).of_thread(3)
        == GivenNames("run", None).of_no_thread()
        == ("run", None)
    )
