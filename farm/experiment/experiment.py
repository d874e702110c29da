"""The state of one experiment, which its events make: counts, strategies, data, pending points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.call import Array
from farm.experiment.config import Config, Strategy
from farm.experiment.events import Event, RunPhase
from farm.experiment.space import Space
from farm.experiment.work import Data, Generate


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A point that was asked for and not told. point: shape (stimuli, d). time: Unix seconds."""

    id: int
    point: Array
    strategy: int
    time: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What others see of an experiment at one moment.

    asked: points given out; told: trials recorded; modelled: of these; failed: points that could
    not be evaluated; pending: points whose outcome is not known yet. strategy: its position.
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


class Experiment:
    """One experiment. Its owner is whoever applies events; all others only read.

    config, seed, experiment_id: as in its SetUp event. space: of config's parameters.
    """

    def __init__(
        self, number: int, config: Config, *, seed: int = 0, experiment_id: str = ""
    ) -> None:
        self.number = number
        self.config = config
        self.seed = seed
        self.experiment_id = experiment_id
        self.space = Space(config.parameters, config.stimuli)

    def apply(self, event: Event) -> None:
        """Take in what has happened; nothing else changes an experiment."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert every invariant."""
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        """What there is to see now."""
        raise NotImplementedError

    @property
    def pending(self) -> Mapping[int, Pending]:
        """Points that wait for their outcome, by id, the oldest first."""
        raise NotImplementedError

    @property
    def strategy(self) -> Strategy:
        """The current one."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether the last strategy is current and its rules are met."""
        raise NotImplementedError

    @property
    def run(self) -> RunPhase | None:
        """The closed loop's phase; None: there never was one."""
        raise NotImplementedError

    @property
    def next_id(self) -> int:
        """Of the next point that is asked for."""
        raise NotImplementedError

    def data(self, strategy: int) -> Data:
        """What the surrogate of that strategy is fitted to."""
        raise NotImplementedError

    def generate(
        self, count: int, fixed: Mapping[str, float] | None = None, *, filler: bool = False
    ) -> Generate:
        """The work for the next `count` points; its `strategy` may be the next one."""
        raise NotImplementedError

    def match(self, points: Array) -> tuple[int | None, ...]:
        """For each point, shape (n, stimuli, d), the id of the pending one that it is, or None."""
        raise NotImplementedError

    def expired(self, now: float) -> tuple[int, ...]:
        """Ids of the points that have been pending for too long."""
        raise NotImplementedError
