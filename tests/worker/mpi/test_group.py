"""A hub and its members: threads stand for ranks, so nothing here needs MPI."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Array, Call, Derivative, Operation, Origin, Result
from farm.errors import InvalidInput, ModelFailed, TimeLimitExceeded
from farm.model import Config, Inputs, Model
from farm.worker import running
from farm.worker.mpi import group
from farm.worker.mpi.group import GroupModel, Hub, Member, decode, encode
from farm.worker.runner import Runner
from tests.support.time_limits import scaled

Work = Callable[[int, str, str, Sequence[Any]], Any]
LIMIT_S = scaled(20.0)


class Ranks:
    """A group whose ranks are threads; `work` gets the rank and the work."""

    def __init__(self, size: int, work: Work, *, hosts: int = 1, **options: Any) -> None:
        self.hub = Hub([f"host{i % hosts}" for i in range(size)], **options)
        self.members: list[Member] = []
        self.threads = [threading.Thread(target=self._rank, args=(i, work)) for i in range(size)]
        self._made = threading.Barrier(size + 1)
        for thread in self.threads:
            thread.start()
        self._made.wait(LIMIT_S)
        self.members.sort(key=lambda member: ranks_of[member])
        self.hub.meet()

    def _rank(self, rank: int, work: Work) -> None:
        member = Member(self.hub.meeting, rank)
        ranks_of[member] = rank
        self.members.append(member)
        self._made.wait(LIMIT_S)
        member.serve(lambda *words: work(rank, *words))

    def end(self) -> None:
        self.hub.end()
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


ranks_of: dict[Member, int] = {}


Start = Callable[..., Ranks]


@pytest.fixture
def ranks() -> Iterator[Start]:
    started: list[Ranks] = []

    def start(size: int, work: Work, **options: Any) -> Ranks:
        started.append(Ranks(size, work, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_arguments_travel_bit_for_bit_and_may_be_written_to() -> None:
    large = np.arange(10_000.0)
    inputs = Inputs(a=np.array([0.1, -0.0, np.nan]), k=np.array([7], "int64"), big=large)
    sens = np.arange(6.0).reshape(2, 3).T
    config = {"level": 2, "tol": float("inf"), "names": ["x"]}
    frames = [bytes(frame) for frame in encode(7, "gradient", "m", (0, 1, inputs, sens, config))]
    serial, what, model, arguments, _ = decode(frames)
    assert (serial, what, model) == (7, "gradient", "m")
    out_wrt, in_wrt, got, got_sens, got_config = arguments
    assert (out_wrt, in_wrt, got_config) == (0, 1, config)
    assert isinstance(got, Inputs)
    assert list(got) == ["a", "k", "big"]
    for name, array in inputs.items():
        assert got[name].dtype == array.dtype
        assert got[name].tobytes() == array.tobytes()
        got[name][0] = 0
    np.testing.assert_array_equal(got_sens, sens)


def test_every_rank_knows_the_ids_of_the_calls(ranks: Start) -> None:
    seen: list[tuple[int, dict[str, str]]] = []

    def work(rank: int, what: str, model: str, arguments: Sequence[Any]) -> None:
        seen.append((rank, running.fields()))
        if what == "fail":
            raise ValueError("no")

    def in_order(some: list[tuple[int, dict[str, str]]]) -> list[tuple[int, dict[str, str]]]:
        return sorted(some, key=lambda one: one[0])

    hub = ranks(3, work).hub
    running.now_running([Call("m", Operation.EVALUATE, origin=Origin("a-1", "anna"))])
    try:
        hub.execute("evaluate", "m")
        with pytest.raises(ModelFailed):
            hub.execute("fail", "m")
    finally:
        running.now_running(())
    hub.execute("evaluate", "m")
    about = {"call": "a-1", "client": "anna", "model": "m"}
    named = [(rank, about) for rank in range(3)]
    assert in_order(seen[:3]) == in_order(seen[3:6]) == named
    assert in_order(seen[6:]) == [(rank, {}) for rank in range(3)]


@pytest.mark.parametrize("hosts", [1, 2])
def test_every_member_does_the_work_and_rank_0_has_the_answer(ranks: Start, hosts: int) -> None:
    done: list[tuple[int, str, str, float]] = []

    def work(rank: int, what: str, model: str, arguments: Sequence[Any]) -> float:
        done.append((rank, what, model, arguments[0]["x"][0]))
        return 10.0 + rank

    group_of_3 = ranks(3, work, hosts=hosts)
    meeting = group_of_3.hub.meeting
    assert (meeting.keys is None) == meeting.address.startswith("ipc://") == (hosts == 1)
    group_of_3.hub.execute("evaluate", "m", (Inputs(x=np.array([5.0])), {}))
    assert sorted(done) == [(rank, "evaluate", "m", 5.0) for rank in range(3)]
    assert group_of_3.members[0].value == 10.0


def test_a_failure_names_its_rank_and_the_group_goes_on(ranks: Start) -> None:
    def work(rank: int, what: str, model: str, arguments: Sequence[Any]) -> int:
        if what == "all" or (what == "one" and rank == 1):
            raise ValueError(f"cannot {what}")
        if what == "input":
            raise InvalidInput("x is negative")
        if what == "leave":
            sys.exit("leaving")
        return rank

    hub = ranks(3, work).hub
    with pytest.raises(ModelFailed, match=r"^rank 1 of 3: ValueError: cannot one$") as caught:
        hub.execute("one")
    assert caught.value.detail.startswith("rank 1 of 3:\nTraceback")
    assert "in work" in caught.value.detail
    assert "in serve" not in caught.value.detail
    with pytest.raises(ModelFailed, match=r"rank \d of 3: ValueError: cannot all") as caught:
        hub.execute("all")
    assert caught.value.detail.count("Traceback") == 3
    with pytest.raises(InvalidInput, match=r"rank \d of 3: x is negative"):
        hub.execute("input")
    with pytest.raises(ModelFailed, match="SystemExit: leaving"):
        hub.execute("leave")
    hub.execute("go on")
    assert not hub.broken


def test_ranks_that_wait_for_a_failed_one_break_the_group(
    ranks: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "STUCK_AFTER_S", 0.2)
    told: list[str] = []
    collective = threading.Event()

    def work(rank: int, what: str, model: str, arguments: Sequence[Any]) -> None:
        if rank == 2:
            raise ValueError("not me")
        collective.wait(LIMIT_S)

    hub = ranks(3, work, on_broken=lambda: told.append("broken")).hub
    began = time.monotonic()
    with pytest.raises(ModelFailed, match=r"rank 2 of 3: ValueError: not me \(ranks .* 0, 1\)"):
        hub.execute("evaluate")
    assert 0.2 <= time.monotonic() - began < LIMIT_S  # for which the others wait
    assert (hub.broken, told) == (True, ["broken"])
    with pytest.raises(ModelFailed, match="about to end"):
        hub.execute("evaluate")
    collective.set()


def test_slow_ranks_are_waited_for_but_not_past_the_time_limit(
    ranks: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "LOOK_EVERY_S", 0.05)
    free = threading.Event()

    def work(rank: int, what: str, model: str, arguments: Sequence[Any]) -> None:
        if what == "long":
            time.sleep(0.8 * rank)
        elif rank == 1:
            free.wait(LIMIT_S)

    hub = ranks(2, work).hub
    hub.time_limit_s = 1.5
    hub.execute("long")
    hub.execute("long")
    with pytest.raises(TimeLimitExceeded, match=r"time limit of 1\.5 s"):
        hub.execute("endless")
    assert hub.broken
    free.set()


class Shares(Model):
    """Records its calls; `evaluate` returns a value on rank 0 only."""

    inputs = {"x": 2}
    outputs = {"y": 2}
    description = "shares"
    repeatable = False
    copies = False

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.seen: list[str] = []

    def cost(self, inputs: Inputs, config: Config) -> float:
        self.seen.append("cost")
        return 2.0 + self.rank

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.seen.append("evaluate")
        return inputs["x"] * config["by"] if self.rank == 0 else None

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        self.seen.append("gradient")
        return 3 * sens

    apply_jacobian = gradient

    def value_and_gradient(self, *arguments: Any) -> Any:
        self.seen.append("both")
        return arguments[2]["x"], 3 * arguments[3]

    def apply_hessian(self, *arguments: Any) -> Any:
        self.seen.append("hessian")
        return [arguments[4].sum(), arguments[5].sum()]


def test_rank_0_alone_says_what_a_run_costs(ranks: Start) -> None:
    models = [Shares(rank) for rank in range(2)]
    pair = ranks(2, lambda *words: None)
    runner = Runner({"s": GroupModel("s", models[0], pair.hub, pair.members[0])})
    (answer,) = runner.execute([Call("s", Operation.COST, (np.ones((3, 2)),), rows=3)])
    assert isinstance(answer, Result)
    assert answer.outputs[0].tolist() == [[2.0]] * 3
    assert [model.seen for model in models] == [["cost"] * 3, []]


def test_a_runner_takes_a_group_for_a_model(ranks: Start) -> None:
    models = [Shares(rank) for rank in range(2)]

    def work(rank: int, what: str, model: str, arguments: Sequence[Any]) -> Any:
        assert model == "s"
        return getattr(models[rank], what)(*arguments)

    pair = ranks(2, work)
    runner = Runner({"s": GroupModel("s", models[0], pair.hub, pair.members[0])})
    (info,) = runner.models()
    assert (info.name, info.description, info.repeatable) == ("s", "shares", False)
    assert not info.copies
    assert len(info.operations) == 6
    x, v = np.array([1.0, 2.0]), np.array([5.0, 7.0])
    wrt = Derivative(0, 0, 0, v, x)
    calls = [
        Call("s", Operation.EVALUATE, (x,), '{"by":4}'),
        Call("s", Operation.GRADIENT, (x,), derivative=Derivative(0, 0, sens=v)),
        Call("s", Operation.APPLY_JACOBIAN, (x,), derivative=Derivative(0, 0, vec=x)),
        Call("s", Operation.VALUE_AND_GRADIENT, (x,), derivative=Derivative(0, 0, sens=v)),
        Call("s", Operation.APPLY_HESSIAN, (x,), derivative=wrt),
        Call("s", Operation.EVALUATE, (v[:1],)),
    ]
    *results, refused = runner.execute(calls)
    answers = [r.outputs[-1].tolist() for r in results if isinstance(r, Result)]
    assert answers == [[4, 8], [15, 21], [3, 6], [15, 21], [12, 3]]
    assert isinstance(refused, InvalidInput)
    seen = ["evaluate", "gradient", "gradient", "both", "hessian"]
    assert [model.seen for model in models] == [seen, seen], "what does not fit reaches nobody"


def test_a_long_path_of_temporary_files_does_not_keep_ranks_apart(
    ranks: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    pair = ranks(2, lambda rank, *words: rank)
    pair.hub.execute("evaluate")
    assert pair.members[0].value == 0


def test_members_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MEET_WITHIN_S", 0.1)
    hub = Hub(["a", "a"])
    with pytest.raises(ModelFailed, match="ranks 0, 1 did not reach rank 0 at ipc://"):
        hub.meet()
    assert not Path(hub.meeting.address.removeprefix("ipc://")).parent.exists()
    hub._socket.close()
    hub._context.term()


LOST = """
import sys, threading, time
from farm.worker.mpi.group import Hub, Member
hub = Hub(["a", "a"])
def rank(i):
    member = Member(hub.meeting, i)
    if i == 1 and sys.argv[1] == "member":
        hub.ready = True
        while not hasattr(hub, "met"): time.sleep(0.01)
        member._socket.disable_monitor()
        member._socket.close(0)
        return
    member.serve(lambda *work: time.sleep(0.1))
for i in (0, 1):
    threading.Thread(target=rank, args=(i,), daemon=True).start()
hub.meet()
hub.met = True
if sys.argv[1] == "hub":
    hub._socket.close(0)
    time.sleep(20)
while True:
    hub.execute("evaluate")
"""


@pytest.mark.parametrize(("who", "says"), [("member", "rank 1"), ("hub", "rank 0")])
def test_a_rank_that_is_gone_ends_the_process(who: str, says: str) -> None:
    done = ended(LOST, who)
    assert done.returncode == group.EXIT_RANK_LOST
    assert f"{says} of the group is gone" in done.stderr


def ended(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_failure_that_nobody_hears_ends_the_process() -> None:
    program = """
import time
from farm.worker.mpi import group
group.HEARD_WITHIN_S = 0.2
hub = group.Hub(["a"])
member = group.Member(hub.meeting, 0)
hub.meet()
for _ in range(3):
    hub._send(0, [group.ARE_YOU_THERE])  # as while a call runs
hub._send(0, group.encode(1, "evaluate", "m", ()))
hub._send(0, [group.ARE_YOU_THERE])
member.serve(lambda *work: 1 / 0)
"""
    done = ended(program)
    assert done.returncode == group.EXIT_RANK_LOST
    assert "rank 0 is stuck; here the model failed" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_member_that_is_slow_to_leave_leaves() -> None:
    program = """
import threading, time, zmq
from farm.worker.mpi.group import Hub, Member
hub = Hub(["a"])
member = Member(hub.meeting, 0)
disable_monitor = zmq.Socket.disable_monitor
def slowly(socket):
    time.sleep(0.3)  # descheduled: nothing keeps the hub from being gone by now
    disable_monitor(socket)
zmq.Socket.disable_monitor = slowly
def host():
    hub.meet()
    hub.end()
threading.Thread(target=host).start()
member.serve(lambda *work: None)
"""
    assert ended(program).returncode == 0
