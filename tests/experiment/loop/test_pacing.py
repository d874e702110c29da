"""Simulated runs of hours: no worker idles, and no point is chosen earlier than needed."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import pytest

from farm.experiment.loop.pacing import IDLE_SHARE, PLACES_EVERY_S, Pace


@dataclass
class Simulation:
    """A run of `points` points with a simulated clock.

    run_s: seconds of each evaluation, in turn; ask_s: seconds of a fit, and each_s of each point.
    """

    pace: Pace
    points: int
    run_s: list[float]
    ask_s: float
    each_s: float = 0.0

    now: float = 0.0
    worked_s: float = 0.0
    fillers: int = 0
    asks: list[int] = field(default_factory=list)
    most_ahead: int = 0

    def run(self) -> None:
        times = itertools.cycle(self.run_s)
        events: list[tuple[float, int, str, float]] = []
        order = itertools.count()
        flying = ready = done = given = 0
        asking: tuple[float, int] | None = None
        free_since = 0.0
        while done < self.points:
            while ready and flying < self.pace.places:
                run_s = next(times)
                heapq.heappush(events, (self.now + run_s, next(order), "evaluated", run_s))
                ready, flying = ready - 1, flying + 1
            need = self.pace.need(
                flying=flying,
                ready=ready,
                asking_s=None if asking is None else self.now - asking[0],
                left=self.points - given,
                waiting_s=self.now - free_since,
            )
            self.most_ahead = max(self.most_ahead, flying + ready + need.ask)
            if need.fill:
                self.fillers += need.fill
                given, ready = given + need.fill, ready + need.fill
                continue
            if need.ask:
                took = self.ask_s + need.ask * self.each_s
                heapq.heappush(events, (self.now + took, next(order), "asked", took))
                asking, given = (self.now, need.ask), given + need.ask
                self.asks.append(need.ask)
                continue
            if need.wake_s is not None and all(what != "woken" for _, _, what, _ in events):
                heapq.heappush(events, (self.now + need.wake_s, next(order), "woken", 0.0))
            self.now, _, what, seconds = heapq.heappop(events)
            if what == "evaluated":
                if flying == self.pace.places and not ready:
                    free_since = self.now
                self.pace.evaluated(seconds)
                self.worked_s += seconds
                flying, done = flying - 1, done + 1
            elif what == "asked":
                assert asking is not None
                self.pace.asked(seconds, asking[1])
                ready, asking = ready + asking[1], None

    @property
    def utilisation(self) -> float:
        return self.worked_s / self.now / self.pace.places


def simulated(
    places: int,
    points: int,
    run_s: list[float],
    ask_s: float,
    each_s: float = 0.0,
    *,
    fill: bool = True,
) -> Simulation:
    simulation = Simulation(Pace(places, fill=fill), points, run_s, ask_s, each_s)
    simulation.run()
    return simulation


@pytest.mark.parametrize("places", [1, 4, 16])
@pytest.mark.parametrize("ask_s", [0.001, 0.02, 0.3, 2.0, 5.0])
@pytest.mark.parametrize("run_s", [[1.0], [0.5, 1.5, 0.7, 1.3]], ids=["even", "uneven"])
def test_workers_do_not_idle_whatever_a_fit_takes(
    places: int, ask_s: float, run_s: list[float]
) -> None:
    """Only the first fit is waited for, and the last, when no more points may be requested."""
    points = 100 * places
    simulation = simulated(places, points, run_s, ask_s)
    waited = 2 * (ask_s + max(run_s))
    assert simulation.worked_s >= 0.95 * places * (simulation.now - waited)


def test_a_quick_strategy_knows_every_outcome_before_it_chooses() -> None:
    simulation = simulated(1, 50, [1.0], IDLE_SHARE / 2)
    assert simulation.most_ahead == 1
    assert simulation.asks == [1] * 50
    assert simulation.fillers == 0


def test_a_slow_strategy_is_asked_ahead_and_not_replaced() -> None:
    """A fit of 0.4 s for 16 places of 1 s: 7 places become free meanwhile."""
    simulation = simulated(16, 1600, [1.0, 0.9, 1.1, 0.8, 1.2], 0.4)
    assert simulation.fillers < 0.02 * 1600
    assert simulation.most_ahead <= 16 + 2 * 8
    assert simulation.utilisation > 0.95


def test_a_strategy_that_cannot_follow_is_helped_out() -> None:
    simulation = simulated(16, 1600, [1.0], 8.0)
    assert 0 < simulation.fillers < 1600
    assert sum(simulation.asks) + simulation.fillers == 1600
    assert simulation.most_ahead <= 3 * 16


@pytest.mark.parametrize("places", [1, 8])
def test_evaluations_of_no_time_wait_for_the_strategy(places: int) -> None:
    """Otherwise thousands of points would fill the space, and none would be chosen."""
    simulation = simulated(places, 20 * places, [0.001], 0.5)
    assert simulation.fillers == 0
    assert simulation.asks[2:-1] == [places] * (len(simulation.asks) - 3)


@pytest.mark.parametrize(("fit_s", "each_s"), [(0.1, 0.5), (0.5, 0.3), (4.0, 0.3), (2.0, 0.01)])
def test_points_are_found_together_as_far_as_they_share_a_fit(fit_s: float, each_s: float) -> None:
    """The fit takes about half of an ask of the right size.

    Points of larger asks are stale, points of smaller ones costly.
    """
    simulation = simulated(16, 3200, [1.0, 0.9, 1.1], fit_s, each_s)
    assert simulation.worked_s >= 0.95 * 16 * (simulation.now - 3 * (fit_s + 16 * each_s))
    late = simulation.asks[len(simulation.asks) // 2 : -1]
    best = fit_s / each_s
    assert max(late) <= max(4 * best, 2)
    assert sum(late) / len(late) >= min(best / 4, 8)


def test_who_wants_no_fillers_waits() -> None:
    simulation = simulated(4, 100, [1.0], 10.0, fill=False)
    assert simulation.fillers == 0
    assert sum(simulation.asks) == 100


def test_no_more_points_than_are_left() -> None:
    pace = Pace(8)
    pace.evaluated(1.0)
    pace.asked(0.001, 1)
    assert pace.need(flying=0, ready=0, asking_s=None, left=3, waiting_s=0.0).ask == 3
    assert pace.need(flying=0, ready=0, asking_s=None, left=0, waiting_s=0.0).ask == 0


def test_the_time_of_all_places_is_counted_as_their_number_changes() -> None:
    pace = Pace(2, began=10.0)
    pace.found(4, 20.0)
    assert pace.place_s(25.0) == 2 * 10 + 4 * 5
    assert not pace.is_outdated(20.0 + PLACES_EVERY_S)
    assert pace.is_outdated(20.1 + PLACES_EVERY_S)
