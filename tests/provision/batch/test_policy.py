"""Autoscaling: one test per rule, and random histories that stay within the bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.policy import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Decision,
    Demand,
    Job,
    KindPolicy,
    Offer,
    demands,
    share,
    together,
    workers_for,
)


def bounded(**values: Any) -> WorkerKind:
    return WorkerKind(name="w", models=["m"], **values)


BOUNDS = bounded(idle_timeout_s=30.0)


@pytest.fixture
def policy() -> KindPolicy:
    return KindPolicy(BOUNDS)


def work(waiting: float, run_time_s: float, *, running: float = 0, needs_s: float = 0.0) -> Demand:
    return Demand(waiting, running, (waiting + running) * run_time_s, needs_s)


def jobs(count: int, *, idle_s: float = 0.0, ends_in_s: float | None = None) -> list[Job]:
    return [Job(str(n), "serving", idle_s, ends_in_s) for n in range(count)]


def settled(policy: KindPolicy, demand: Demand | None, live: list[Job], now: float) -> Decision:
    """Return the decision after this state has lasted longer than grow_after_s."""
    policy.decide(demand, live, now - policy.kind.grow_after_s)
    return policy.decide(demand, live, now)


# Demand from a snapshot


def snapshot(*queues: dict[str, Any], workers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"queues": list(queues), "workers": list(workers)}


def row(**values: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "operation": "evaluate",
        "queued": 0,
        "in_flight": 0,
        "run_time_mean_s": 0.0,
        "run_time_p95_s": 0.0,
        **values,
    }


def test_demand_is_queue_length_times_run_time() -> None:
    queue = row(queued=10, in_flight=2, run_time_mean_s=3.0, run_time_p95_s=5.0)
    found = demands(snapshot(queue), {})
    assert found == {("m", "evaluate"): Demand(10, 2, 36.0, 6.0)}


def test_calls_that_share_an_evaluation_count_together() -> None:
    queue = row(queued=130, in_flight=64, run_time_mean_s=2.0)
    assert demands(snapshot(queue), {"m": 64}) == {("m", "evaluate"): Demand(3, 1, 8.0, 0.0)}
    gradients = row(queued=130, operation="gradient", run_time_mean_s=2.0)
    assert demands(snapshot(gradients), {"m": 64})["m", "gradient"].waiting == 130


def test_a_class_without_a_finished_call_takes_as_long_as_it_has_run() -> None:
    workers = (
        {"models": ["m"], "busy_s": 40.0},
        {"models": ["m"], "busy_s": None},
        {"models": ["other"], "busy_s": 900.0},
    )
    found = demands(snapshot(row(queued=9, in_flight=1), workers=workers), {})
    assert found["m", "evaluate"].work_s == 400.0


def test_descriptions_need_one_worker_however_many_they_are() -> None:
    asked = row(operation="describe", queued=5, in_flight=3, run_time_mean_s=100.0)
    assert demands(snapshot(asked), {}) == {("m", "describe"): Demand(waiting=1)}
    assert demands(snapshot(row(operation="describe", in_flight=3)), {}) == {}


def test_empty_queues_are_no_demand() -> None:
    assert demands(snapshot(row(operation="gradient")), {}) == {}


def test_what_needs_the_least_time_decides_which_worker_is_of_use() -> None:
    both = together([work(1, 1.0, needs_s=90.0), work(1, 1.0, needs_s=5.0)])
    assert both == Demand(2, 0, 2.0, 5.0)
    assert (
        together([work(1, 1.0, needs_s=90.0), work(0, 1.0, running=1, needs_s=5.0)]).needs_s == 90
    )


# Workers wanted


@pytest.mark.parametrize(
    ("demand", "workers"),
    [
        (work(0, 1.0), 0),
        (work(1, 0.001), 1),
        (work(100, 0.0), 1),
        (work(100, 6.0), 10),
        (work(100, 6.01), 11),
        (work(4, 3600.0), 4),
        (work(1, 3600.0, running=2), 3),
    ],
)
def test_workers_get_the_work_done_in_about_the_backlog_time(demand: Demand, workers: int) -> None:
    assert workers_for(demand, 60.0) == workers


def test_jobs_are_counted_in_blocks_of_workers() -> None:
    policy = KindPolicy(replace(BOUNDS, workers=4))
    assert settled(policy, work(100, 6.0), jobs(1), 10.0).submit == 2


def test_a_need_must_last_before_it_is_acted_on(policy: KindPolicy) -> None:
    assert policy.decide(work(50, 60.0), jobs(1), 0.0).submit == 0
    assert policy.decide(work(50, 60.0), jobs(1), 1.9).submit == 0
    assert policy.decide(work(0, 60.0), jobs(1), 1.95).submit == 0
    assert policy.decide(work(50, 60.0), jobs(1), 2.1).submit == 0
    assert policy.decide(work(4, 60.0), jobs(1), 3.0).submit == 0
    assert policy.decide(work(50, 60.0), jobs(1), 4.5).submit == 3


def test_the_first_worker_is_asked_for_at_once() -> None:
    assert KindPolicy(BOUNDS).decide(work(1, 0.0), [], 0.0).submit == 1


def test_what_waits_in_slurms_queue_is_not_asked_for_twice(policy: KindPolicy) -> None:
    pending = [Job(str(n), "pending") for n in range(5)]
    assert settled(policy, work(5, 60.0), pending, 10.0).submit == 0
    assert settled(policy, work(8, 60.0), pending, 20.0).submit == 3


def test_there_are_never_fewer_than_the_minimum() -> None:
    policy = KindPolicy(replace(BOUNDS, min_jobs=3))
    assert policy.decide(work(0, 0.0), jobs(1), 0.0).submit == 2
    assert policy.decide(work(0, 0.0), jobs(3, idle_s=1e6), 1e6).release == ()


def test_nor_more_than_the_maximum_with_what_is_about_to_end() -> None:
    policy = KindPolicy(replace(BOUNDS, max_jobs=4))
    assert settled(policy, work(1000, 60.0), jobs(1), 10.0).submit == 3
    demand = work(1000, 60.0)
    assert settled(policy, demand, jobs(1), 20.0).submit == 3
    assert policy.decide(demand, jobs(1), 21.0, leaving=2).submit == 1
    assert policy.decide(demand, jobs(1), 22.0, leaving=5).submit == 0
    ending = jobs(3, ends_in_s=10.0)
    assert settled(policy, work(1000, 60.0, needs_s=72.0), ending, 30.0).submit == 1


def test_while_it_is_not_known_what_they_serve_one_job_finds_out(policy: KindPolicy) -> None:
    assert policy.decide(None, [], 0.0).submit == 1
    assert settled(policy, None, [Job("1", "pending")], 10.0) == Decision(1)


def test_callers_that_wait_for_each_answer_get_more_when_the_backlog_stays(
    policy: KindPolicy,
) -> None:
    chains = work(7, 1.0, running=1)
    assert settled(policy, chains, jobs(1), 10.0).submit == 0
    assert settled(policy, chains, jobs(1), 60.0).submit == 0
    assert settled(policy, chains, jobs(1), 80.0).submit == 1
    two = [*jobs(1), Job("new", "starting")]
    assert settled(policy, chains, two, 90.0).submit == 0
    assert settled(policy, chains, jobs(2), 140.0).submit == 0
    assert settled(policy, chains, jobs(2), 160.0).submit == 2
    assert settled(policy, chains, jobs(8), 900.0).submit == 0


# Releasing jobs


def test_idle_jobs_are_let_go_after_the_time_out_and_no_sooner(policy: KindPolicy) -> None:
    policy.decide(work(0, 60.0, running=2), jobs(2), 0.0)
    idle = [Job("a", "serving", idle_s=29.0), Job("b", "serving", idle_s=40.0)]
    assert policy.decide(work(0, 0.0), idle, 10.0).release == ()
    assert policy.decide(work(0, 0.0), idle, 41.0).release == ("b",)


def test_busy_and_starting_jobs_are_never_let_go(policy: KindPolicy) -> None:
    live = [Job("a", "serving", idle_s=0.0), Job("b", "starting", idle_s=99.0)]
    policy.decide(work(0, 0.0), live, 0.0)
    assert policy.decide(work(0, 0.0), live, 1000.0).release == ()


def test_jobs_that_have_not_begun_go_first_the_latest_before_all(policy: KindPolicy) -> None:
    live = [Job("old", "pending"), Job("new", "pending"), Job("a", "serving", idle_s=99.0)]
    policy.decide(work(1, 1.0), live, 0.0)
    policy.decide(work(0, 1.0, running=2), live, 1.0)
    assert policy.decide(work(0, 1.0, running=2), live, 50.0).release == ("new", "old")


def test_nothing_is_let_go_while_calls_wait_that_it_could_run(policy: KindPolicy) -> None:
    live = [*jobs(2), Job("p", "pending")]
    for now in range(0, 1000, 10):
        decision = policy.decide(work(5, 0.1), live, float(now))
        assert decision.release == ()
        assert decision.submit == 0


def test_a_job_too_near_its_end_for_what_waits_is_replaced(policy: KindPolicy) -> None:
    live = [Job("busy", "serving", 0.0, 50.0), Job("idle", "serving", 1.0, 50.0)]
    decision = settled(policy, work(3, 60.0, needs_s=72.0), live, 10.0)
    assert decision.release == ("idle",)
    assert decision.submit == 3
    assert settled(policy, work(0, 60.0, running=3, needs_s=72.0), live, 20.0).release == ()


# Refusals


def test_after_refusals_it_pauses_ever_longer_and_says_so(policy: KindPolicy) -> None:
    now, pauses = 0.0, []
    for _ in range(10):
        assert policy.decide(work(1, 1.0), [], now).submit == 1
        policy.failed(now)
        assert "next try in" in policy.decide(work(1, 1.0), [], now + 0.1).problem
        pauses.append(policy.paused_until - now)
        now = policy.paused_until
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses[-1] == LONGEST_PAUSE_S
    assert pauses == sorted(pauses)
    policy.worked()
    policy.failed(now)
    assert policy.paused_until == now + FIRST_PAUSE_S


def test_in_a_pause_jobs_are_still_let_go(policy: KindPolicy) -> None:
    policy.decide(work(0, 0.0), jobs(1, idle_s=50.0), 0.0)
    policy.failed(49.0)
    assert policy.decide(work(0, 0.0), jobs(1, idle_s=50.0), 50.0).release == ("0",)


# Sharing


def offer(*models: str, capacity: int = 10, limit_s: float | None = None) -> Offer:
    return Offer(frozenset(models), capacity, 60.0, limit_s)


def test_each_kind_gets_the_demand_of_its_models() -> None:
    classes = {("a", "evaluate"): work(5, 60.0), ("b", "evaluate"): work(3, 60.0)}
    shares = share(classes, [offer("a"), offer("b"), Offer(None, 10, 60.0)])
    assert [d and d.waiting for d, _ in shares] == [5, 3, None]


def test_what_the_first_kind_has_no_room_for_goes_to_the_next() -> None:
    classes = {("a", "evaluate"): work(20, 60.0)}
    (first, _), (second, _) = share(classes, [offer("a", capacity=5), offer("a", capacity=20)])
    assert first is not None
    assert second is not None
    assert (first.waiting, second.waiting) == (5, 15)
    (first, _), (second, _) = share(classes, [offer("a", capacity=0), offer("a", capacity=20)])
    assert second == work(20, 60.0)


def test_calls_too_long_for_a_job_are_said_and_go_to_a_kind_with_time() -> None:
    classes = {("a", "evaluate"): work(4, 90.0, needs_s=108.0)}
    (short, problem), (long, fine) = share(classes, [offer("a", limit_s=60.0), offer("a")])
    assert short == Demand()
    assert problem == "calls of a (evaluate) need 108 s, a job has 60 s: raise `time`"
    assert long is not None
    assert (long.waiting, fine) == (4, "")


# Random histories

LOADS = st.one_of(
    st.none(),
    st.builds(
        work,
        st.integers(0, 200),
        st.sampled_from([0.0, 0.01, 1.0, 30.0, 500.0]),
        running=st.integers(0, 20),
        needs_s=st.sampled_from([0.0, 0.0, 100.0]),
    ),
)
STEPS = st.lists(
    st.tuples(
        LOADS,
        st.floats(0.05, 40.0),
        st.sampled_from(["", "", "", "refuse", "start", "end"]),
    ),
    max_size=60,
)


class Cluster:
    """Carries out decisions, and asserts the invariants of each."""

    def __init__(self, bounds: WorkerKind) -> None:
        self.bounds = bounds
        self.policy = KindPolicy(bounds)
        self.live: dict[str, Job] = {}
        self.now = 0.0
        self.began: dict[str, float] = {}
        self.released_at = -1e9
        self.count = 0

    def step(self, demand: Demand | None, after_s: float, event: str) -> None:
        self.now += after_s
        busy = demand is None or demand.running > 0
        for job in self.live.values():
            serving = job.phase == "serving"
            idle_s = job.idle_s + after_s if serving and not busy else 0.0
            ends = None if job.ends_in_s is None else job.ends_in_s - after_s
            self.live[job.id] = replace(job, idle_s=idle_s, ends_in_s=ends)
        if event == "start" and self.live:
            name = next(iter(self.live))
            self.live[name] = replace(self.live[name], phase="serving", ends_in_s=200.0)
            self.policy.worked()
        elif event == "end" and self.live:
            del self.live[next(iter(self.live))]
        elif event == "refuse":
            self.policy.failed(self.now)
        paused = self.now < self.policy.paused_until
        before = len(self.live)
        decision = self.policy.decide(demand, list(self.live.values()), self.now)
        assert 0 <= decision.wanted <= self.bounds.max_jobs
        assert before + decision.submit <= max(self.bounds.max_jobs, before)
        if paused:
            assert decision.submit == 0
        self._let_go(decision, demand, before)
        for _ in range(decision.submit):
            self.count += 1
            self.live[str(self.count)] = Job(str(self.count), "pending")
            self.began[str(self.count)] = self.now
        if before == 0 and demand is not None and demand.units and not paused:
            assert self.live, "calls wait, there is no worker, and none is asked for"
        if not paused:
            spent = {
                j.id
                for j in self.live.values()
                if demand
                and j.ends_in_s is not None
                and demand.waiting
                and j.ends_in_s < demand.needs_s
            }
            full = before >= self.bounds.max_jobs
            assert full or len(self.live) - len(spent) >= self.bounds.min_jobs

    def _let_go(self, decision: Decision, demand: Demand | None, before: int) -> None:
        assert len(set(decision.release)) == len(decision.release)
        for name in decision.release:
            job = self.live.pop(name)
            assert job.phase == "pending" or job.idle_s > 0.0, "it was busy"
            spent = (
                job.ends_in_s is not None and demand is not None and job.ends_in_s < demand.needs_s
            )
            if not spent:
                assert before - len(decision.release) >= self.bounds.min_jobs
                held_s = self.now - self.began[name]
                assert held_s >= self.bounds.idle_timeout_s, "taken on and let go at once"
                assert decision.submit == 0, "let go and taken on at once"


@given(
    steps=STEPS,
    least=st.integers(0, 3),
    more=st.integers(0, 5),
    workers=st.integers(1, 5),
    idle_timeout_s=st.sampled_from([5.0, 60.0]),
)
def test_whatever_happens_the_bounds_hold(
    steps: list[tuple[Demand | None, float, str]],
    least: int,
    more: int,
    workers: int,
    idle_timeout_s: float,
) -> None:
    bounds = bounded(
        min_jobs=least,
        max_jobs=max(1, least + more),
        workers=workers,
        idle_timeout_s=idle_timeout_s,
    )
    cluster = Cluster(bounds)
    for step in steps:
        cluster.step(*step)
    # Without load it returns to the minimum, and stays there.
    cluster.policy.worked()
    for _ in range(40):
        for name in list(cluster.live):
            cluster.live[name] = replace(cluster.live[name], phase="serving")
        cluster.step(Demand(), 10.0, "")
    assert len(cluster.live) == bounds.min_jobs


@given(waiting=st.integers(1, 500), run_time_s=st.floats(0.001, 1000.0), have=st.integers(1, 10))
def test_under_constant_demand_it_settles_on_what_is_wanted(
    waiting: int, run_time_s: float, have: int
) -> None:
    policy = KindPolicy(replace(BOUNDS, max_jobs=1000))
    demand = work(waiting, run_time_s)
    live = jobs(have)
    for now in range(0, 60, 3):
        decision = policy.decide(demand, live, float(now))
        live += [Job(f"{now}-{n}", "serving") for n in range(decision.submit)]
    assert len(live) == max(have, workers_for(demand, BOUNDS.backlog_s))
