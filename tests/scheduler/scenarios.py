"""Cases of many callers, run in simulated time; each returns a ratio to the bound or fair share.

`benchmarks/scheduling.py` prints them, and tests hold their bars.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from farm.call import Operation, Result
from farm.policies import ModelPolicy
from farm.scheduler.accounts import BULK, Chain
from farm.scheduler.actions import Reply
from farm.scheduler.state import WorkerId
from tests.scheduler.recorder import call
from tests.scheduler.simulator import Simulation

ONE_WAY_S = 1.5e-4


@dataclass
class Answered:
    """A call that was answered: its model, run time, the caller's wait for the answer, and when."""

    model: str
    run_time_s: float
    response_s: float
    queued_s: float
    at: float


@dataclass
class Callers:
    """Closed loops on a farm: each caller asks again when it has its answer."""

    farm: Simulation
    seed: int
    until: float = float("inf")
    answers: list[Answered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def time(self, mean: float, variation: float = 0.3) -> float:
        """Return a lognormal run time; variation: standard deviation divided by the mean."""
        sigma = np.sqrt(np.log(1 + variation**2))
        return float(mean * self.rng.lognormal(-(sigma**2) / 2, sigma))

    def add(self, calls: Iterable[tuple[str, float]], client: str, chain: Chain = BULK) -> None:
        """Add a caller that asks for these calls, (model, run time), one after another."""
        waiting = iter(calls)

        def ask() -> None:
            following = next(waiting, None)
            if following is None or self.farm.now > self.until:
                return
            model, seconds = following
            began = self.farm.now

            def told(reply: Reply) -> None:
                now = self.farm.now
                self.answers.append(Answered(model, seconds, now - began, reply.queue_time_s, now))
                ask()

            self.farm.submit(seconds, model=model, client=client, chain=chain, told=told)

        self.farm.at(0.0, ask)

    def forever(
        self, model: str, mean: float, variation: float = 0.3
    ) -> Iterator[tuple[str, float]]:
        """Yield calls of one model without end."""
        while True:
            yield model, self.time(mean, variation)

    def of(self, model: str, since: float = 0.0) -> list[Answered]:
        """Return the answers of a model after some time."""
        return [a for a in self.answers if a.model == model and a.at > since]


def slow_down(answers: list[Answered]) -> float:
    """Return the time callers waited for their answers, divided by the run time."""
    return sum(a.response_s for a in answers) / sum(a.run_time_s for a in answers)


def strangers(seed: int) -> float:
    """Slow-down of four callers of a 10 ms model beside twelve of a 500 ms model, 4 workers."""
    farm = Simulation(workers=4, one_way_s=ONE_WAY_S, models=("fast", "slow"))
    callers = Callers(farm, seed, until=55.0)
    for i in range(12):
        callers.add(callers.forever("slow", 0.5), f"slow {i}")
    for i in range(4):
        callers.add(callers.forever("fast", 0.01), f"fast {i}")
    farm.run()
    return slow_down(callers.of("fast", since=15.0))


def after_a_slow_moment(seed: int) -> float:
    """Seconds for a 10 ms call beside twelve callers of 500 ms, after 5 s of slow messages."""
    farm = Simulation(workers=4, one_way_s=ONE_WAY_S, models=("fast", "slow"))
    callers = Callers(farm, seed, until=55.0)
    for _ in range(12):
        callers.add(callers.forever("slow", 0.5), "host")
    callers.add(callers.forever("fast", 0.01), "cheap")

    def message_time(seconds: float) -> Callable[[], None]:
        return lambda: setattr(farm, "one_way_s", seconds)

    farm.at(5.0, message_time(0.1))
    farm.at(10.0, message_time(ONE_WAY_S))
    farm.run()
    fast = callers.of("fast", since=15.0)
    return sum(a.response_s for a in fast) / len(fast)


def in_lock_step(seed: int, *, reserve: int) -> tuple[float, float]:
    """Seconds of a 10 ms call beside 500 ms calls that all begin together, and rate of the long.

    4 workers, 12 callers of the long model, and one of the short one with pauses. reserve: workers
    kept for the short one. The rate is that of work, over what four workers can do.
    """
    policies = {"fast": ModelPolicy(reserve=reserve)}
    models = ("fast", "slow")
    farm = Simulation(workers=4, one_way_s=ONE_WAY_S, models=models, policies=policies)
    callers = Callers(farm, seed, until=55.0)
    for i in range(12):
        callers.add(callers.forever("slow", 0.5, 0.0), f"slow {i}")
    took: list[float] = []

    def ask() -> None:
        began = farm.now

        def told(_: Reply) -> None:
            if farm.now > 15.0:
                took.append(farm.now - began)
            if farm.now < 55.0:
                farm.at(farm.now + callers.rng.exponential(0.2), ask)

        farm.submit(0.01, model="fast", client="fast", told=told)

    farm.at(0.0, ask)
    farm.run()
    long_s = sum(a.run_time_s for a in callers.of("slow", since=15.0) if a.at <= 55.0)
    return float(np.mean(took)), long_s / (4 * 40.0)


def two_sweeps(seed: int) -> float:
    """Share of a sweep of 1 s calls beside one of 20 s calls of another model, one worker."""
    farm = Simulation(workers=1, one_way_s=ONE_WAY_S, models=("short", "long"))
    callers = Callers(farm, seed)
    used = {"short": 0.0, "long": 0.0}

    def told(model: str, seconds: float) -> Callable[[Reply], None]:
        def tell(_: Reply) -> None:
            used[model] += seconds

        return tell

    for model, mean, count in (("long", 20.0, 400), ("short", 1.0, 8000)):
        for _ in range(count):
            seconds = callers.time(mean, 0.2)
            farm.submit(seconds, model=model, client=model, told=told(model, seconds))
    farm.run(until=4000.0)
    return used["short"] / (used["short"] + used["long"])


def mlda(seed: int, chains: int, fine: int = 20) -> tuple[float, float]:
    """Multilevel delayed acceptance: slow-down of coarse calls, and total time over the bound.

    Named chains of 10 ms, 100 ms and 2 s calls on 8 workers: 25 coarse and 5 middle calls before
    each of the `fine` fine ones.
    """
    farm = Simulation(workers=8, one_way_s=ONE_WAY_S, models=("coarse", "middle", "fine"))
    callers = Callers(farm, seed)
    work = 0.0
    for i in range(chains):
        calls: list[tuple[str, float]] = []
        for _ in range(fine):
            for _ in range(5):
                calls += [("coarse", callers.time(0.01, 0.4)) for _ in range(5)]
                calls.append(("middle", callers.time(0.1, 0.4)))
            calls.append(("fine", callers.time(2.0, 0.4)))
        work += sum(seconds for _, seconds in calls)
        callers.add(calls, f"chain {i}")
    farm.run()
    return slow_down(callers.of("coarse")), farm.last_end / (work / 8)


NAMINGS: dict[str, Callable[[int], tuple[str, Chain]]] = {
    "stock": lambda i: ("host", None),
    "Farm-Client": lambda i: (f"chain {i}", BULK),
    "Farm-Chain": lambda i: ("run", f"chain {i}"),
}


def beside_a_sweep(
    seed: int,
    chains: int,
    naming: str = "stock",
    *,
    workers: int = 8,
    variation: float = 0.3,
    model: str = "m",
    lasts_s: float = 200.0,
) -> tuple[float, float]:
    """Chains of 1 s calls beside a sweep: their rate over the fair one, and their longest wait.

    model: of the chains; that of the sweep is "m".
    """
    farm = Simulation(workers=workers, one_way_s=ONE_WAY_S, models=("m", "n"))
    callers = Callers(farm, seed, until=lasts_s)
    for _ in range(int(1.2 * workers * lasts_s)):
        farm.submit(callers.time(1.0, variation), client="sweep")
    for i in range(chains):
        client, chain = NAMINGS[naming](i)
        callers.add(callers.forever(model, 1.0, variation), client, chain)
    farm.run(until=lasts_s)
    fair = min(chains, workers * chains / (chains + 1))
    answers = [a for a in callers.answers if a.at > 0.2 * lasts_s]
    rate = sum(a.run_time_s for a in answers) / (0.8 * lasts_s)
    return rate / fair, max(a.queued_s for a in answers)


def sweep_over_configs(seed: int) -> float:
    """A sweep of 1 s calls in 8 configs with a warm-up of 2 s, 8 workers: makespan over the bound.

    The bound is the work divided by the workers, with one warm-up for each worker.
    """
    farm = Simulation(workers=8, one_way_s=ONE_WAY_S, warm_up_s=2.0)
    callers = Callers(farm, seed)
    work = 0.0
    for i in range(800):
        seconds = callers.time(1.0)
        work += seconds
        farm.submit(seconds, config=f'{{"mesh":{i % 8}}}', client="sweep")
    farm.run()
    return farm.last_end / (work / 8 + 2.0)


def chains_with_configs(seed: int, lasts_s: float = 300.0) -> float:
    """Eight chains with a config each and pauses, 8 workers, a warm-up of 2 s: mean run over warm.

    Each run is 1 s, the pause between two runs 0.5 s in the mean.
    """
    farm = Simulation(workers=8, one_way_s=ONE_WAY_S, warm_up_s=2.0)
    rng = np.random.default_rng(seed)
    runs: list[float] = []

    def chain(config: str) -> None:
        def told(reply: Reply) -> None:
            outcome = reply.outcome
            assert isinstance(outcome, Result)
            if farm.now > 0.1 * lasts_s:
                runs.append(outcome.run_time_s)
            if farm.now < lasts_s:
                farm.at(farm.now + rng.exponential(0.5), ask)

        def ask() -> None:
            farm.submit(1.0, config=config, client=config, chain=None, told=told)

        farm.at(rng.uniform(0.0, 2.0), ask)

    for i in range(8):
        chain(f'{{"data":{i}}}')
    farm.run()
    return float(np.mean(runs))


def stragglers(seed: int, spread: float, *, copies: bool = True) -> tuple[float, int]:
    """640 calls of 1 s on 64 workers, 2 % of them ten times slower on their first worker.

    Returns the makespan over its bound and the number of copies. spread: standard deviation of the
    lognormal run times.
    """
    rng = np.random.default_rng(seed)
    sigma = np.sqrt(np.log(1 + spread**2))
    run_times = rng.lognormal(-(sigma**2) / 2, sigma, 640)
    slow = rng.random(640) < 0.02
    farm = Simulation(workers=64, one_way_s=1e-3, copies=copies)
    for seconds, is_slow in zip(run_times.tolist(), slow.tolist(), strict=True):
        farm.submit(seconds, slow_s=10 * seconds if is_slow else None)
    farm.run()
    (queue,) = farm.scheduler.view.snapshot(farm.now)["queues"]
    return farm.last_reply / max(run_times.sum() / 64, run_times.max()), queue["copies"]


def levels(seed: int, *, workers: int = 4, rounds: int = 100) -> tuple[float, float]:
    """A model whose config has levels of 10 ms and 1 s: seconds waited for copies, and saved.

    2,000 quick runs, then rounds in which as many callers as workers ask at once, each for a quick
    and for a slow run. 2 % of the slow ones take ten times as long on their first worker.
    """
    rng = np.random.default_rng(seed)
    farm = Simulation(workers=workers, one_way_s=ONE_WAY_S)
    callers = Callers(farm, seed)
    for _ in range(2000):
        farm.submit(1e-2, config='{"level":0}')
    left = rounds * workers

    def done(reply: Reply) -> None:
        nonlocal left
        left -= 1
        if left and left % workers == 0:
            ask()

    def ask() -> None:
        for _ in range(workers):
            seconds = callers.time(1.0)
            slow_s = 10 * seconds if rng.random() < 0.02 else None
            farm.submit(1e-2, config='{"level":0}')
            farm.submit(seconds, config='{"level":1}', slow_s=slow_s, told=done)

    farm.at(100.0, ask)
    farm.run()
    return farm.cost_of_copies()


def gradients_at_home(seed: int, chains: int = 6, lasts_s: float = 300.0) -> float:
    """Share of gradients that run where their point was evaluated, of those that could.

    Chains of an evaluation and a gradient of a second each, with pauses, on 8 workers; a gradient
    could if that worker was free within a tenth of a run.
    """
    farm = Simulation(workers=8, one_way_s=ONE_WAY_S, keeps_point=True)
    callers = Callers(farm, seed)
    asked: list[tuple[float, WorkerId, Reply]] = []
    points = itertools.count()

    def chain(client: str) -> None:
        def evaluate() -> None:
            point = np.full(3, float(next(points)))
            forward = replace(call(), inputs=(point,))
            adjoint = replace(call(operation=Operation.GRADIENT), inputs=(point,))

            def gradient(evaluated: Reply) -> None:
                began, home = farm.now, evaluated.worker
                assert home is not None

                def told(reply: Reply) -> None:
                    asked.append((began, home, reply))
                    if farm.now < lasts_s:
                        farm.at(farm.now + callers.rng.exponential(0.5), evaluate)

                farm.submit(callers.time(1.0), client=client, asked=adjoint, told=told)

            farm.submit(callers.time(1.0), client=client, asked=forward, told=gradient)

        farm.at(callers.rng.uniform(0.0, 2.0), evaluate)

    for i in range(chains):
        chain(f"chain {i}")
    farm.run()
    could = [
        home == reply.worker
        for at, home, reply in asked
        if farm.is_free(home, at, at + 0.1, reply.task.id)
    ]
    assert len(could) > len(asked) / 2
    return sum(could) / len(could)
