"""Cases of many callers, run in simulated time; each returns a ratio to the bound or fair share.

`benchmarks/scheduling.py` prints them, and tests hold their bars.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farm.call import Call, Operation, Result
from farm.policies import ModelPolicy
from farm.scheduler.accounts import BULK, Chain
from farm.scheduler.actions import Reply
from tests.support.scheduler_recorder import call
from tests.support.scheduler_simulator import Simulation

ONE_WAY_S = 1.5e-4


def lognormal(rng: np.random.Generator, count: int, variation: float) -> NDArray[np.float64]:
    """Return run times of mean 1 s; variation: standard deviation divided by the mean."""
    sigma = np.sqrt(np.log(1 + variation**2))
    return rng.lognormal(-(sigma**2) / 2, sigma, count)


class Ask(NamedTuple):
    """A call of a caller, which it makes some time after its last answer."""

    run_time_s: float
    model: str = "m"
    config: str = "{}"
    asked: Call | None = None
    pause_s: float = 0.0


def ran_s(reply: Reply) -> float:
    """Return how long a worker ran for an answer, warm-up included."""
    assert isinstance(reply.outcome, Result)
    return reply.outcome.run_time_s


@dataclass
class Answered:
    """A call that was answered, and how long its caller waited for the answer."""

    ask: Ask
    client: str
    response_s: float
    reply: Reply
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
        return mean * float(lognormal(self.rng, 1, variation)[0])

    def add(self, calls: Iterable[Ask], client: str, chain: Chain = BULK) -> None:
        """Add a caller that asks for these calls one after another."""
        waiting = iter(calls)

        def go_on() -> None:
            following = next(waiting, None) if self.farm.now <= self.until else None
            if following is not None and following.pause_s:
                self.farm.at(self.farm.now + following.pause_s, lambda: ask(following))
            elif following is not None:
                ask(following)

        def ask(this: Ask) -> None:
            began = self.farm.now

            def told(reply: Reply) -> None:
                now = self.farm.now
                self.answers.append(Answered(this, client, now - began, reply, now))
                go_on()

            how = this._asdict()
            del how["pause_s"]
            self.farm.submit(**how, client=client, chain=chain, told=told)

        self.farm.at(0.0, go_on)

    def forever(self, model: str, mean: float, variation: float = 0.3) -> Iterator[Ask]:
        """Yield calls of one model without end."""
        while True:
            yield Ask(self.time(mean, variation), model)

    def of(self, model: str, since: float = 0.0) -> list[Answered]:
        """Return the answers of a model after some time."""
        return [a for a in self.answers if a.ask.model == model and a.at > since]


def slow_down(answers: list[Answered]) -> float:
    """Return the time callers waited for their answers, divided by the run time."""
    return sum(a.response_s for a in answers) / sum(ran_s(a.reply) for a in answers)


def mean_response_s(answers: list[Answered]) -> float:
    """Return how long callers waited for an answer on average."""
    return float(np.mean([a.response_s for a in answers]))


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
    return mean_response_s(callers.of("fast", since=15.0))


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
    pauses = (callers.rng.exponential(0.2) for _ in itertools.count())
    callers.add((Ask(0.01, "fast", pause_s=pause_s) for pause_s in pauses), "fast")
    farm.run()
    long_s = sum(ran_s(a.reply) for a in callers.of("slow", since=15.0) if a.at <= 55.0)
    return mean_response_s(callers.of("fast", since=15.0)), long_s / (4 * 40.0)


def two_sweeps(seed: int) -> float:
    """Share of a sweep of 1 s calls beside one of 20 s calls of another model, one worker."""
    farm = Simulation(workers=1, one_way_s=ONE_WAY_S, models=("short", "long"))
    callers = Callers(farm, seed)
    for model, mean, count in (("long", 20.0, 400), ("short", 1.0, 8000)):
        for _ in range(count):
            farm.submit(callers.time(mean, 0.2), model=model, client=model)
    farm.run(until=4000.0)
    short_s, long_s = (
        sum(ran_s(reply) for reply in farm.replies if reply.task.call.model == model)
        for model in ("short", "long")
    )
    return short_s / (short_s + long_s)


def mlda(seed: int, chains: int, fine: int = 20) -> tuple[float, float]:
    """Multilevel delayed acceptance: slow-down of coarse calls, and total time over the bound.

    Named chains of 10 ms, 100 ms and 2 s calls on 8 workers: 25 coarse and 5 middle calls before
    each of the `fine` fine ones.
    """
    farm = Simulation(workers=8, one_way_s=ONE_WAY_S, models=("coarse", "middle", "fine"))
    callers = Callers(farm, seed)
    work = 0.0
    for i in range(chains):
        middle = [*[("coarse", 0.01)] * 5, ("middle", 0.1)]
        one = [*middle * 5, ("fine", 2.0)]
        calls = [Ask(callers.time(mean, 0.4), model) for model, mean in one * fine]
        work += sum(each.run_time_s for each in calls)
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
    rate = sum(ran_s(a.reply) for a in answers) / (0.8 * lasts_s)
    return rate / fair, max(a.reply.queue_time_s for a in answers)


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
    callers = Callers(farm, seed, until=lasts_s)

    def chain(config: str) -> Iterator[Ask]:
        yield Ask(1.0, config=config, pause_s=callers.rng.uniform(0.0, 2.0))
        while True:
            yield Ask(1.0, config=config, pause_s=callers.rng.exponential(0.5))

    for i in range(8):
        callers.add(chain(f'{{"data":{i}}}'), f"chain {i}", None)
    farm.run()
    return float(np.mean([ran_s(a.reply) for a in callers.answers if a.at > 0.1 * lasts_s]))


def stragglers(seed: int, spread: float, *, copies: bool = True) -> tuple[float, int]:
    """640 calls of 1 s on 64 workers, 2 % of them ten times slower on their first worker.

    Returns the makespan over its bound and the number of copies. spread: standard deviation of the
    lognormal run times.
    """
    rng = np.random.default_rng(seed)
    run_times = lognormal(rng, 640, spread)
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
    callers = Callers(farm, seed, until=lasts_s)
    points = itertools.count()

    def chain(pause_s: float) -> Iterator[Ask]:
        while True:
            point = (np.full(3, float(next(points))),)
            forward = replace(call(), inputs=point)
            adjoint = replace(call(operation=Operation.GRADIENT), inputs=point)
            yield Ask(callers.time(1.0), asked=forward, pause_s=pause_s)
            yield Ask(callers.time(1.0), asked=adjoint)
            pause_s = callers.rng.exponential(0.5)

    names = [f"chain {i}" for i in range(chains)]
    for name in names:
        callers.add(chain(callers.rng.uniform(0.0, 2.0)), name)
    farm.run()
    asked = 0
    could: list[bool] = []
    for name in names:
        mine = [a for a in callers.answers if a.client == name]
        for evaluated, gradient in zip(mine[::2], mine[1::2], strict=False):
            home, began = evaluated.reply.worker, gradient.at - gradient.response_s
            assert home is not None
            asked += 1
            if farm.is_free(home, began, began + 0.1, gradient.reply.task.id):
                could.append(home == gradient.reply.worker)
    assert len(could) > asked / 2
    return sum(could) / len(could)
