"""How far a closed loop is: a value, which its owner shows and clients are told."""

from __future__ import annotations

from dataclasses import dataclass

from farm.experiment.events import RunPhase


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    evaluations: points asked for, of `budget`; told, failed: of them, how they ended; in_flight:
    in the farm now, of `places`; ready: found and not given yet; fillers: points that fill the
    space as the strategy was busy. utilisation: share of the places' time in which they worked.
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
