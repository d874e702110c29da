"""The state of a closed loop: options, stage, points, counts, and the progress to show. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, auto

from farm.experiment.loop.pacing import Need, Pace
from farm.experiment.state.events import RunPhase
from farm.transitions import TransitionTable


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How a stretch of the loop was asked for.

    in_flight, budget: replace the values of [farm]. kills: the farm, not the loop, ends evaluations
    that exceed the time limit of [farm]. job: of the batch system that this process is in.
    """

    in_flight: int | None = None
    budget: int | None = None
    kills: bool = False
    job: str = ""


AS_CONFIGURED = LoopOptions()
"""Options that replace nothing."""


class LoopStage(IntEnum):
    """Where a stretch of the loop stands.

    running: it submits points; pausing: it only waits for those in the farm. paused, ended: none is
    left there, and the end is recorded or about to be.
    """

    RUNNING = auto()
    PAUSING = auto()
    PAUSED = auto()
    ENDED = auto()


LOOPS = TransitionTable(
    "loop",
    ((LoopStage.RUNNING, LoopStage.PAUSING), "told to pause", LoopStage.PAUSING),
    ((LoopStage.RUNNING, LoopStage.PAUSING), "told to run", LoopStage.RUNNING),
    ((LoopStage.RUNNING,), "last point recorded", LoopStage.ENDED),
    ((LoopStage.PAUSING,), "last point recorded", LoopStage.PAUSED),
    (tuple(LoopStage), "failed", LoopStage.PAUSED),
    begins={"begun": LoopStage.RUNNING},
)


@dataclass(slots=True)
class LoopPoints:
    """The points of a stretch. ready: found, not submitted. flying: in the farm.

    asking: how many the strategy searches for, since `asking_since`. free_since: when a place in
    the farm became free last.
    """

    free_since: float
    ready: deque[int] = field(default_factory=deque)
    flying: set[int] = field(default_factory=set)
    asking: int = 0
    asking_since: float | None = None

    def need(self, pace: Pace, left: int, now: float) -> Need:
        """Return the next action. left: points that may still be requested."""
        return pace.need(
            flying=len(self.flying),
            ready=len(self.ready),
            asking_s=None if self.asking_since is None else now - self.asking_since,
            left=left,
            waiting_s=now - self.free_since,
        )

    def search(self, count: int, now: float) -> None:
        """Record that the strategy searches for points; 0: that it has ended."""
        self.asking, self.asking_since = count, now if count else None

    def landed(self, point: int, now: float) -> None:
        """Record that a point is no longer in the farm."""
        self.flying.discard(point)
        self.free_since = now


@dataclass(slots=True)
class LoopCounts:
    """The work of a stretch since `began`.

    fillers: space-filling points taken while the strategy was busy. useless: points in a row
    without a usable outcome. worked_s: run time of all. waiting: why the farm takes no point.
    """

    began: float
    told: int = 0
    failed: int = 0
    fillers: int = 0
    useless: int = 0
    worked_s: float = 0.0
    waiting: str = ""

    def told_point(self, run_s: float, *, usable: bool) -> None:
        """Count a point that was evaluated. usable: its outcome is modelled."""
        self.told += 1
        self.worked_s += run_s
        self.useless = 0 if usable else self.useless + 1

    def failed_point(self) -> None:
        """Count a point that could not be evaluated."""
        self.failed += 1
        self.useless += 1

    def filled(self, count: int) -> None:
        """Count space-filling points."""
        self.fillers += count

    def wait(self, why: str) -> None:
        """Wait for the farm; later reasons only report how long the first has lasted."""
        self.waiting = self.waiting or why

    def answered(self) -> None:
        """End the wait for the farm."""
        self.waiting = ""


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """The progress of a run.

    evaluations: points requested, of `budget`; told, failed: how many of them were evaluated, and
    how many failed; in_flight: points in the farm, of `places`; ready, fillers: as in LoopPoints
    and LoopCounts. utilisation: fraction of the places' time in which they worked.
    """

    experiment: int
    phase: RunPhase
    why: str
    strategy: str
    evaluations: int
    budget: int | None
    told: int
    failed: int
    in_flight: int
    places: int
    ready: int
    asking: bool
    fillers: int
    elapsed_s: float
    utilisation: float
    message: str
