"""One client's conversation about experiments: a message in, what is to be done and answered out.

Nothing changes here: a Step holds the events of a message, and whoever keeps them applies them.
So a message that is refused, or that cannot be kept, leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from farm.experiment.events import Event
from farm.experiment.experiment import Experiment
from farm.experiment.work import Answered, Generated, Work
from farm.protocols.aepsych import Request

SETUPS = -1
"""The turn that setups wait for: they are numbered one after another."""


class World(Protocol):
    """What a session sees of the server."""

    @property
    def experiments(self) -> Mapping[int, Experiment]:
        """By number."""

    @property
    def next_number(self) -> int:
        """Of the experiment that is set up next."""

    @property
    def db_name(self) -> str:
        """What `info` calls the database."""


class RunAction(StrEnum):
    """Requests of farm's own: the server evaluates the points itself."""

    RUN = "run"
    PAUSE = "pause"
    STATUS = "status"


@dataclass(frozen=True, slots=True)
class RunCommand:
    """What is asked of the closed loop of an experiment; None: as its [farm] section says."""

    action: RunAction
    experiment: int
    in_flight: int | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a message asks for, in this order: keep and apply `events`, then work or answer.

    answer: the answer, if there is nothing more to do. A status command's answer is what the
    experiment knows; whoever runs the loop may add to it.
    work, then: work to be done, and what to do with its result (and the time when it is there).
    run: a command for the loop. close: the connection ends after the answer.
    current: the session's experiment from now on; `Session.took` sees to that.
    """

    events: tuple[Event, ...] = ()
    answer: Mapping[str, Any] | None = None
    work: Work | None = None
    then: Callable[[Generated | Answered, float], Step] | None = None
    run: RunCommand | None = None
    close: bool = False
    current: int | None = None


class Session:
    """One connection: it has a current experiment, the last one set up or resumed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.current: int | None = None

    def turn(self, request: Request) -> int | None:
        """What the request waits for before `receive` and holds to its last Step; None: nothing.

        Asks of one experiment are answered one after another: its number. Setups: SETUPS.
        Tells, queries and all others never wait.
        """
        raise NotImplementedError

    def receive(self, request: Request, now: float) -> Step:
        """What to do about the request. Raises FarmError, whose message is the answer."""
        raise NotImplementedError

    def took(self, step: Step) -> None:
        """The events of the step are kept and applied: its experiment is the current one."""
        if step.current is not None:
            self.current = step.current
