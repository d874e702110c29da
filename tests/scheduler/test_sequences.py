"""Directed tests of sequences: one for each rule. The random histories have them, too."""

from __future__ import annotations

import pytest

from farm.call import Call, Operation
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    Overloaded,
    WorkerLost,
)
from farm.scheduler.explanation import explain, place
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, forgotten, replied, sent, stateful, step


def begun(farm: Recorder, *ids: int | str, worker: str = "w") -> None:
    """Run the first call of each sequence on a worker that is the only free one."""
    for each in ids:
        task = farm.begin(worker, step(each, "s"))
        farm.answer(worker, task)


def rules(farm: Recorder, task: TaskId) -> list[str]:
    return [reason.rule for reason in explain(farm.task(task), farm.now)]


@pytest.fixture
def seven(farm: Recorder) -> Recorder:
    """Sequence 7 has begun on "w", which has room for another one, and is idle."""
    farm.join("w", stateful())
    begun(farm, 7)
    return farm


def in_line(farm: Recorder, *flags: str) -> list[TaskId]:
    """Submit a call of sequence 7 with each of these flags; the first one runs on "w" at once."""
    tasks = [farm.submit(step(7, each)) for each in flags]
    farm.expect(sent("w", tasks[0]))
    return tasks


def test_calls_of_a_sequence_run_one_by_one_where_it_began(farm: Recorder) -> None:
    farm.join("w", stateful())
    first, second, third = in_line(farm, "s", "", "")
    farm.join("idle", stateful())
    farm.expect()  # although another worker is free
    farm.answer("w", first, 1.0, sent("w", second))
    farm.answer("w", second, ModelFailed("it raised"), sent("w", third))  # which does not end it
    farm.answer("w", third)
    only = farm.begin("idle", step(8, "se"))
    farm.answer("idle", only)
    assert not farm.worker("idle").sequences, "a sequence of one call leaves nothing"


def test_end_frees_the_id_and_the_place(farm: Recorder) -> None:
    farm.join("w", stateful(most=1))
    begun(farm, 7)
    last, other = farm.submit(step(7, "e")), farm.submit(step(8, "s"))
    farm.expect(sent("w", last))
    with pytest.raises(InvalidInput, match="sequence 7 to model 's' must specify the START flag"):
        farm.submit(step(7))
    farm.answer("w", last, 1.0, sent("w", other))  # the worker drops the state by itself
    farm.answer("w", other)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (step("x"), "x to model 's'"),
        (step("x", "e"), "x to model 's'"),
        (step("7"), "7 to model 's'"),
        (step(7, name="t"), "7 to model 't'"),
    ],
    ids=["first", "first and last", "an id that looks like another", "of another model"],
)
def test_first_call_must_start(farm: Recorder, asked: Call, named: str) -> None:
    farm.join("w", stateful(), stateful("t"))
    begun(farm, 7)
    text = f"inference request for sequence {named} must specify the START flag on the first"
    with pytest.raises(InvalidInput, match=text):
        farm.submit(asked)
    assert len(farm.scheduler) == 0


def test_places_bound_the_sequences_of_a_worker(farm: Recorder) -> None:
    farm.join("w", stateful(most=2))
    begun(farm, 1, 2)
    third = farm.submit(step(3, "s"))
    farm.expect()  # although the worker idles
    assert rules(farm, third) == ["sequence"]
    assert "2 of 2 at each worker" in explain(farm.task(third), farm.now)[0].text
    farm.answer("w", farm.begin("w", step(1)))
    farm.join("v", stateful(most=2))
    farm.expect(sent("v", third))
    farm.answer("v", third)
    begun(farm, 4, worker="v")


def test_new_sequences_go_where_the_fewest_are(farm: Recorder) -> None:
    farm.join("w", stateful(most=9))
    begun(farm, 1, 2)
    farm.join("v", stateful(most=9))
    farm.expect()
    begun(farm, 3, 4, worker="v")


@pytest.mark.parametrize("before", ["", "e"], ids=["it goes on", "it ends"])
def test_start_of_a_live_sequence_begins_it_anew_after_its_calls(
    seven: Recorder, before: str
) -> None:
    """Triton does so, too: the calls before the start are still answered."""
    old, anew = in_line(seven, before, "s")
    seven.join("v", stateful())
    seven.expect()  # two sequences of one id are never at workers at once
    drops = [] if before else [forgotten("w", 7)]  # at an end the worker does so by itself
    seven.answer("w", old, 1.0, *drops, sent("w", anew))
    seven.answer("w", anew)


def test_idle_sequence_ends_in_time(seven: Recorder) -> None:
    assert seven.scheduler.wakeup() == 10.0
    seven.after(9.0).expect()
    goes_on = seven.begin("w", step(7))
    assert seven.scheduler.wakeup() == 10.0  # a lower bound
    seven.after(30.0).expect()  # it runs: that is not idle
    seven.answer("w", goes_on)
    seven.after(9.0).expect()
    seven.after(1.0).expect(forgotten("w", 7))
    with pytest.raises(InvalidInput, match="START"):
        seven.submit(step(7))
    assert seven.scheduler.wakeup() is None


def test_lost_worker_breaks_off_its_sequences(seven: Recorder) -> None:
    begun(seven, 8)
    runs, waits = in_line(seven, "", "")
    seven.join("v", stateful())
    behind = seven.submit(step(8))
    seven.expect()
    seven.leave("w", "signal SIGKILL", running=[runs])
    seven.expect(
        replied(behind, WorkerLost, None),
        replied(runs, WorkerLost, "w"),
        replied(waits, WorkerLost, None),
    )
    assert seven.last_error() == (
        "sequence 7 of model 's' was lost with worker w (signal SIGKILL); "
        "begin it again with the START flag"
    )
    for each in (7, 8):
        with pytest.raises(InvalidInput, match="must specify the START flag"):
            seven.submit(step(each))
    begun(seven, 7, worker="v")


def test_start_that_has_not_begun_comes_back(farm: Recorder) -> None:
    farm.join("w", stateful())
    first, second = in_line(farm, "s", "")
    farm.resize("w", 0)
    farm.hand_back("w", first)
    farm.expect(forgotten("w", 7))
    farm.finish("w", first)  # such an answer is ignored
    farm.expect()
    farm.leave("w", drained=True)
    farm.join("v", stateful())
    farm.expect(sent("v", first))
    farm.answer("v", first, 1.0, sent("v", second))
    farm.answer("v", second)


def test_call_lost_on_the_way_breaks_off_its_sequence(seven: Recorder) -> None:
    lost, behind = in_line(seven, "", "")
    seven.miss("w", lost)
    seven.expect(
        replied(lost, WorkerLost, "w"), replied(behind, Cancelled, None), forgotten("w", 7)
    )
    assert "an earlier request of sequence 7 of model 's' did not run" in seven.last_error()


def test_cancelled_call_that_waits_breaks_off_what_follows(seven: Recorder) -> None:
    runs, fine, gone, follows = in_line(seven, "", "", "", "")
    seven.scheduler.cancel(gone)
    seven.expect(replied(follows, Cancelled, None))
    with pytest.raises(InvalidInput, match="START"):
        seven.submit(step(7))
    seven.answer("w", runs, 1.0, sent("w", fine))
    seven.answer("w", fine, 1.0, forgotten("w", 7))


def test_deadline_of_a_call_behind_others_breaks_off_the_rest(seven: Recorder) -> None:
    runs = seven.begin("w", step(7))
    late, follows = seven.submit_many(2, step(7), deadline=5.0)
    late_replies = replied(late, DeadlineExceeded, None), replied(follows, Cancelled, None)
    seven.after(5.0).expect(*late_replies)
    seven.answer("w", runs, 1.0, forgotten("w", 7))


def test_draining_worker_runs_its_sequences_to_their_end(farm: Recorder) -> None:
    farm.join("w", stateful(), "m")
    begun(farm, 7)
    farm.resize("w", 0, last_slots=1)
    goes_on, other, new = farm.submit(step(7)), farm.submit("m"), farm.submit(step(8, "s"))
    farm.expect(sent("w", goes_on))
    last = farm.submit(step(7, "e"))
    farm.answer("w", goes_on, 1.0, sent("w", last))
    farm.answer("w", last)
    farm.leave("w", drained=True)
    for task in (other, new):
        farm.scheduler.cancel(task)


@pytest.mark.parametrize("reads", [False, True], ids=["does not read", "unreachable"])
def test_worker_that_cannot_get_calls_gets_none_of_its_sequences(
    seven: Recorder, reads: bool
) -> None:
    seven.resize("w", 0) if reads else seven.fill("w", True)
    task = seven.submit(step(7))
    seven.expect()
    assert rules(seven, task) == ["sequence"]
    text = explain(seven.task(task), 0.0)[0].text
    assert "it waits for worker w, which has its sequence 7" in text
    seven.resize("w", 1) if reads else seven.fill("w", False)
    seven.expect(sent("w", task))
    seven.answer("w", task)


def test_sequences_and_other_models_take_turns(farm: Recorder) -> None:
    farm.join("w", stateful(), "m")
    begun(farm, 7)
    before = farm.submit("m", client="b")
    mine = farm.submit(step(7), client="a")
    after = farm.submit("m", client="b")
    farm.expect(sent("w", before))
    farm.answer("w", before, 1.0, sent("w", mine))
    farm.answer("w", mine, 1.0, sent("w", after))
    farm.answer("w", after)


def test_a_call_of_a_sequence_is_never_sent_ahead(farm: Recorder) -> None:
    """Short calls of another model fill the worker; the sequence waits for a free slot."""
    farm.join("w", stateful(), "m")
    begun(farm, 7)
    farm.run_times().add(1e-4)
    short = farm.begin_many("w", 3)
    task = farm.submit(step(7))
    farm.expect()
    for each in short[:2]:
        farm.answer("w", each, 1e-4)
    farm.answer("w", short[2], 1e-4, sent("w", task))
    farm.answer("w", task)


def test_waiting_calls_count_towards_the_limits() -> None:
    farm = Recorder(max_queued=3, max_queued_per_client=2)
    farm.join("w", stateful())
    farm.begin("w", step(7, "s"), client="a")
    farm.submit_many(2, step(7), client="a")
    with pytest.raises(Overloaded, match="2 calls of client 'a' are waiting"):
        farm.submit(step(7), client="a")
    farm.submit(step(8, "s"), client="b")  # further sequences wait, too
    for each in range(9, 20):
        with pytest.raises(Overloaded, match="3 calls are waiting"):
            farm.submit(step(each, "s"), client="b")
    sequences = farm.queue("s").model.sequences
    assert sequences is not None
    assert sequences.live.keys() == {7, 8}
    for task in reversed(list(farm.scheduler._open.by_id)):
        farm.scheduler.cancel(task)
    farm.expect()


def test_calls_behind_others_are_explained_counted_and_placed(seven: Recorder) -> None:
    runs = seven.begin("w", step(7), client="a")
    second, third = seven.submit_many(2, step(7), client="a")
    assert rules(seven, third) == ["sequence"]
    assert explain(seven.task(third), 0.0)[0].text == (
        "before it 2 calls of 'a': earlier calls of its sequence 7"
    )
    assert [place(seven.task(task))[0] for task in (second, third)] == [2, 3]
    view = seven.scheduler.view
    assert view.queued() == view.load().queued == 2
    assert [task.id for task in view.waiting("a")] == [second, third]
    (row,) = [r for r in view.snapshot(0.0)["queues"] if r["model"] == "s"]
    assert row["queued"] == 2
    for task in (third, second, runs):
        seven.scheduler.cancel(task)
    seven.finish("w", runs)
    seven.expect(forgotten("w", 7))


def test_idle_sequences_end_when_the_farm_stops(seven: Recorder) -> None:
    begun(seven, 8)
    seven.scheduler.end_sequences()
    seven.expect(forgotten("w", 7), forgotten("w", 8))


def test_calls_without_a_step_and_models_without_sequences_are_as_ever(farm: Recorder) -> None:
    """The worker refuses the former; questions about the model need no sequence."""
    farm.join("w", stateful(), "m")
    farm.answer("w", farm.begin("w", "s"))
    farm.answer("w", farm.begin("w", step(7, name="m")))
    assert farm.queue("s", Operation.DESCRIBE).needs_no_slot
