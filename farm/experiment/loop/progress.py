"""The progress of a closed loop, for its owner to show and for clients."""

from __future__ import annotations

from dataclasses import dataclass

from farm.experiment.state.events import RunPhase


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """The progress of a run.

    evaluations: points requested, of `budget`; told, failed: how many of them were evaluated, and
    how many failed; in_flight: points in the farm now, of `places`; ready: found but not submitted
    yet;
    fillers: space-filling points taken while the strategy was busy. utilisation: fraction of the
    places' time in which they worked.
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
