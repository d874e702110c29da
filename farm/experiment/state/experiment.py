"""The state of one experiment, derived from its events: counts, strategies, data, pending points.

Only `apply` changes it, so the same events give the same experiment and the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.ask.generators import length_of
from farm.experiment.config.definition import Config, OutcomeKind, Strategy
from farm.experiment.space import Space
from farm.experiment.state.buffers import PointPool, TrialData
from farm.experiment.state.events import (
    Asked,
    Event,
    Failed,
    Finished,
    Released,
    RunPhase,
    RunState,
    Seeded,
    SetUp,
    Told,
)
from farm.experiment.work import Data, Generate

PENDING_LIMIT_S = 3600.0
"""A point without an outcome for this long no longer counts as about to be evaluated."""
MAX_PENDING = 2_000
"""Beyond it, the oldest points without an outcome are dropped: each tell is compared with all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The publicly visible state of an experiment at one moment.

    asked, failed, pending: points handed out, not evaluable, and without an outcome yet. told,
    modelled: trials recorded, and those of them that are modelled. strategy: its position.
    """

    number: int
    experiment_id: str
    name: str
    strategy: int
    strategy_name: str
    asked: int
    told: int
    modelled: int
    failed: int
    pending: int
    finished: bool
    run: RunPhase | None
    run_why: str
    note: str


@dataclass(slots=True, eq=False)
class LoopRecord:
    """The recorded part of an experiment's closed loop.

    phase: None if there never was a loop; why: the reason for it; options: the in_flight and budget
    it began with. model_version, job: of the last RunState that has one. evaluations: points that
    it has asked for; evaluating: those without an outcome, by id; failed: those not evaluable.
    """

    phase: RunPhase | None = None
    why: str = ""
    options: tuple[int | None, int | None] = None, None
    model_version: str = ""
    job: str = ""
    evaluations: int = 0
    failed: int = 0
    evaluating: dict[int, Array] = field(default_factory=dict)

    def apply(self, event: RunState) -> None:
        """Record that the loop began, paused or ended."""
        self.phase, self.why = event.phase, event.why
        if event.phase is RunPhase.RUNNING:
            self.options = event.in_flight, event.budget
            self.model_version, self.job = event.version or self.model_version, event.job

    def fail(self, points: int) -> None:
        """Record points that could not be evaluated."""
        self.failed += points

    def asked(self, event: Asked) -> None:
        """Record points that the loop asked for."""
        self.evaluations += len(event.ids)
        self.evaluating.update(zip(event.ids, event.points, strict=True))


@dataclass(slots=True, eq=False)
class StrategyProgress:
    """The progress of the strategy at position `index`, since it became the current one.

    told_before: trials modelled before it. asks: points asked for, of which `fillers` fill the
    space. ended: by request. post_range: of its last points, see Generated.
    """

    index: int = 0
    told_before: int = 0
    asks: int = 0
    fillers: int = 0
    ended: bool = False
    post_range: float | None = None

    def end(self) -> None:
        """End the strategy by request."""
        self.ended = True

    def asked(self, event: Asked) -> None:
        """Record points of this strategy."""
        self.asks += len(event.ids)
        self.fillers += len(event.ids) * event.filler
        self.post_range = self.post_range if event.post_range is None else event.post_range


class Experiment:
    """One experiment. Its owner applies events; all other code only reads.

    note: how the last points were generated, if it differs from the config. The other fields are as
    in its SetUp event.
    """

    def __init__(
        self, number: int, config: Config, *, seed: int = 0, experiment_id: str = ""
    ) -> None:
        self.number = number
        self.config = config
        self.seed = seed
        self.experiment_id = experiment_id
        self.space = Space.of(config)
        self.note = ""
        self.loop = LoopRecord()
        self._lengths = [length_of(s.generator, config) for s in config.strategies]
        self._fillers = 0
        self._trials = TrialData(config.stimuli, self.space.dimensions, len(config.outcomes))
        self._pending = PointPool((config.stimuli, self.space.dimensions))
        self._current = StrategyProgress()

    # Events

    def apply(self, event: Event) -> None:
        """Apply an event; nothing else changes an experiment. Raises InvalidInput."""
        if event.experiment != self.number:
            raise InvalidInput(f"an event of experiment {event.experiment}, not {self.number}")
        match event:
            case SetUp():
                pass  # handled by the constructor
            case Seeded():
                self._trials.warm_start.append(event)
            case Asked():
                self._apply_asked(event)
            case Told():
                self._trials.add(event)
                self._settle([id for id in event.ids if id is not None])
            case Failed():
                self.loop.fail(len(event.ids))
                self._settle(event.ids)
            case Released():
                self._settle(event.ids)
            case Finished():
                # Asks and finishes are in the order of the journal: this one may come too late.
                if event.strategy == self._current.index:
                    self._current.end()
            case RunState():
                self.loop.apply(event)
            case _:
                raise InvalidInput(f"an event of an unknown kind, {type(event).__name__}")

    def _apply_asked(self, event: Asked) -> None:
        if event.strategy > self._current.index:
            self._current = StrategyProgress(event.strategy, told_before=self.modelled)
            self._pending.remove(self._left_by_change())
        self._fillers += len(event.ids) * event.filler
        # Fillers take no turn: they may arrive after their strategy was left.
        if event.strategy == self._current.index:
            self._current.asked(event)
        if event.run:
            self.loop.asked(event)
        self.note = event.note
        self._pending.add(event.ids, event.points, event.time)
        self._pending.keep_last(MAX_PENDING)

    def _settle(self, ids: Sequence[int]) -> None:
        """Mark these points as no longer waiting for an outcome."""
        self._pending.remove(ids)
        for id in ids:
            self.loop.evaluating.pop(id, None)

    # Views

    @property
    def asked(self) -> int:
        """Number of points handed out, including fillers; the id of the next one."""
        return self._pending.added

    @property
    def told(self) -> int:
        """Number of trials recorded."""
        return self._trials.recorded

    @property
    def modelled(self) -> int:
        """Number of trials that count for models and rules."""
        return len(self._trials)

    @property
    def warnings(self) -> list[str]:
        """Deviations from the config, and the origin of the warm start: a sentence each."""
        return [*self.config.warnings, *(seeds.note for seeds in self._trials.warm_start)]

    @property
    def strategy_index(self) -> int:
        """Position of the current strategy."""
        return self._current.index

    @property
    def strategy(self) -> Strategy:
        """The current strategy."""
        return self.config.strategies[self.strategy_index]

    @property
    def pending(self) -> dict[int, tuple[Array, float]]:
        """Points that wait for their outcome, and the Unix seconds of their ask; oldest first."""
        points = zip(self._pending.points, self._pending.times.tolist(), strict=True)
        return dict(zip(self._pending.ids.tolist(), points, strict=True))

    @property
    def finished(self) -> bool:
        """Whether the last strategy is current and its rules are met."""
        return self._is_last(self._current.index) and self._met(self._current)

    def finished_after(
        self, strategy: int, points: int = 0, post_range: float | None = None
    ) -> bool:
        """Whether the experiment is finished after `points` more points of that strategy."""
        if not self._is_last(strategy):
            return False
        now = self._current if strategy == self._current.index else StrategyProgress(strategy)
        last = now.post_range if post_range is None else post_range
        return self._met(replace(now, asks=now.asks + points, post_range=last))

    def snapshot(self) -> Snapshot:
        """Return the publicly visible state."""
        return Snapshot(
            number=self.number,
            experiment_id=self.experiment_id,
            name=self.config.metadata.experiment_name,
            strategy=self.strategy_index,
            strategy_name=self.strategy.name,
            asked=self.asked,
            told=self.told,
            modelled=self.modelled,
            failed=self.loop.failed,
            pending=len(self._pending),
            finished=self.finished,
            run=self.loop.phase,
            run_why=self.loop.why,
            note=self.note,
        )

    def check(self) -> None:
        """Assert every invariant."""
        now = self._current
        assert 0 <= now.index < len(self.config.strategies)
        assert 0 <= now.fillers <= now.asks <= self.asked
        assert now.fillers <= self._fillers <= self.asked
        assert 0 <= now.told_before <= self.modelled
        self._trials.check()
        ids = self._pending.ids
        assert len(ids) <= min(MAX_PENDING, self.asked)
        assert (np.diff(ids) > 0).all()
        assert not len(ids) or 0 <= ids[0] <= ids[-1] < self.asked
        assert len(ids) == len(self._pending.points) == len(self._pending.times)
        assert len(self.loop.evaluating) <= self.loop.evaluations <= self.asked
        assert all(0 <= id < self.asked for id in self.loop.evaluating)

    # Decisions

    def still_wanted(self) -> int | None:
        """Return how many points the rules still need; points in evaluation count as told.

        None: unknown, as the rules depend on more than counts, or lead to the next strategy. 0:
        none, at least until the points in evaluation have an outcome.
        """
        strategy, now, last = self.strategy, self._current, self._is_last(self._current.index)
        if self.finished:
            return 0
        if now.ended or strategy.run_indefinitely:
            return None
        length = self._lengths[now.index]
        if length is not None:
            left = length - (now.asks - now.fillers)
            return left if left > 0 else 0 if last else None
        evaluating = len(self.loop.evaluating)
        coming = self.modelled + evaluating
        wanted = max(strategy.min_asks - now.asks, strategy.min_total_tells - coming)
        if wanted <= 0:
            waits = last and evaluating and self._is_spread(strategy, now.post_range)
            return 0 if waits else None
        return wanted if strategy.max_asks is None else min(wanted, strategy.max_asks - now.asks)

    def generate(
        self,
        count: int,
        fixed: Mapping[str, float] | None = None,
        *,
        filler: bool = False,
        without: Sequence[int] = (),
    ) -> Generate:
        """Return the work for the next `count` points; its `strategy` may be the next one.

        fixed, filler: as in Generate. without: ids of pending points about to be released.
        """
        strategy = self._next_strategy()
        changes = strategy != self.strategy_index
        asked = 0 if changes else self._current.asks - self._current.fillers
        modelled = self.config.strategies[strategy].surrogate is not None
        pending = self.space.empty()
        if modelled:
            leaving = set(self._left_by_change() if changes else without)
            stay = [id not in leaving for id in self._pending.ids.tolist()]
            pending = self._pending.points[np.array(stay, dtype=bool)]
        return Generate(
            config=self.config,
            strategy=strategy,
            count=count,
            asked=self._fillers if filler else asked,
            data=self.data(strategy),
            pending=pending,
            fixed=dict(fixed or {}),
            seed=self.seed,
            filler=filler,
        )

    def data(self, strategy: int) -> Data:
        """Return the data that the surrogate of that strategy is fitted to."""
        x, y = self._trials.up_to(strategy)
        now = self._current
        since = self.modelled - now.told_before if strategy <= now.index else 0
        chosen = self.config.strategies[strategy]
        recent = chosen.keep_most_recent
        if recent is not None and recent < len(x):
            # The trials of the last fit may be gone; the remaining ones are few.
            return Data(x[-recent:], y[-recent:], fit_to=recent)
        fit_to = len(x) - since % max(chosen.refit_every, 1)
        return Data(x, y, fit_to=min(max(fit_to, 1), len(x)))

    def has_data(self, strategy: int) -> bool:
        """Whether there is data for the surrogate of that strategy."""
        return self.modelled > 0 or len(self.data(strategy).x) > 0

    @property
    def trials(self) -> tuple[Array, Array]:
        """Return points and outcomes of all modelled trials: (n, stimuli, d), (n, outcomes)."""
        return self._trials.all()

    def with_surrogate(self) -> int | None:
        """Return the strategy that answers queries, or None.

        It is the current strategy or the next one with a surrogate, or else the last one before.
        """
        having = [i for i, s in enumerate(self.config.strategies) if s.surrogate is not None]
        later = [i for i in having if i >= self.strategy_index]
        return later[0] if later else having[-1] if having else None

    def match(self, points: Array) -> tuple[int | None, ...]:
        """Return the id of the pending point equal to each point, (n, stimuli, d), or None.

        Points that a closed loop evaluates are excluded: only the loop tells their outcomes.
        """
        own = list(self.loop.evaluating) if self.loop.phase is RunPhase.RUNNING else []
        open_ = np.flatnonzero(~np.isin(self._pending.ids, own))
        if not len(open_) or not len(points):
            return (None,) * len(points)
        # Most clients return the points unchanged; comparing all with all takes longer.
        rows = self._pending.find(points, open_) if len(points) > 1 else np.array([-1])
        left, others = np.flatnonzero(rows < 0), np.setdiff1d(open_, rows)
        near = np.array(
            self.space.matches(points[left], self._pending.points[others]), dtype=np.int64
        )
        rows[left[near >= 0]] = others[near[near >= 0]]
        ids = self._pending.ids.tolist()
        return tuple(None if row < 0 else ids[row] for row in rows.tolist())

    def expired(self, now: float) -> tuple[int, ...]:
        """Return the ids of overdue pending points, except those of a closed loop."""
        late = self._pending.ids[self._pending.times < now - PENDING_LIMIT_S].tolist()
        return tuple(id for id in late if id not in self.loop.evaluating)

    def _left_by_change(self) -> list[int]:
        """Return the ids of pending points that a change of strategy releases: not the loop's."""
        return [id for id in self._pending.ids.tolist() if id not in self.loop.evaluating]

    def _is_last(self, strategy: int) -> bool:
        return strategy == len(self.config.strategies) - 1

    def _next_strategy(self) -> int:
        """Return the position of the strategy that generates the next points."""
        index = self._current.index
        return index + 1 if not self._is_last(index) and self._met(self._current) else index

    def _met(self, progress: StrategyProgress) -> bool:
        """Whether a strategy with this progress is finished."""
        strategy = self.config.strategies[progress.index]
        if progress.ended:
            return True
        if strategy.run_indefinitely or not self.modelled:
            return False
        if strategy.max_asks is not None and progress.asks >= strategy.max_asks:
            return True
        length = self._lengths[progress.index]
        if length is not None:
            return progress.asks - progress.fillers >= length
        return (
            progress.asks >= strategy.min_asks
            and self.modelled >= strategy.min_total_tells
            and self._is_spread(strategy, progress.post_range)
        )

    def _is_spread(self, strategy: Strategy, post_range: float | None) -> bool:
        """Whether outcomes and surrogate vary as much as the strategy's rules require."""
        least, wanted = strategy.min_total_outcome_occurrences, strategy.min_post_range
        binary = [o.kind is OutcomeKind.BINARY for o in self.config.outcomes]
        ones = self._trials.ones[binary].tolist()
        return all(least <= n <= self.modelled - least for n in ones) and (
            wanted is None or (post_range is not None and post_range >= wanted)
        )
