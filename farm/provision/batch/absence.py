"""The rules by which a job counts as absent, alike for all batch systems.

A list of jobs may lack a job that lives: it comes from a cache, is cut short or empty. So a list is
only a reason to ask about the job itself. If the batch system says that it does not know the job's
id either, as its records may have been purged, the job is absent once two whole lists without it,
asked for a minute apart, agree with that, and no worker of it has been connected since the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CONFIRM_S = 60.0
"""Time between the first and the last list without a job that has to be absent."""

ASK_AGAIN_S = 10.0
"""Time between two questions about one job."""

SILENCE_S = 60.0
"""A job is asked about if no list has had it for this time, for example as no list arrives."""

ENDING_SILENCE_S = 15.0
"""The same for a job that should be ending, whatever lists say: they may come from a cache."""


@dataclass(slots=True)
class Evidence:
    """The batch system's words about one job. All times are those of the questions.

    told_at: the latest answer that the job exists, or the end of its submission. first_missing,
    last_missing: the whole lists without it since then. unknown_at: the latest answer that there is
    no such job. suspected: whether there is reason to ask about it; not before ask_at.
    """

    told_at: float
    answered_at: float
    first_missing: float | None = None
    last_missing: float = 0.0
    unknown_at: float = -math.inf
    suspected: bool = False
    ask_at: float = -math.inf

    def told(self, at: float) -> None:
        """Its id became known, or its submission ended without one."""
        self.told_at = at

    def listed(self, asked_at: float) -> None:
        """A list has the job."""
        self.told_at = max(self.told_at, asked_at)
        self.first_missing = None

    def missing(self, asked_at: float) -> None:
        """A whole list lacks the job."""
        if asked_at <= self.told_at:
            return  # it may be older than the job
        if self.first_missing is None:
            self.first_missing = asked_at
        self.last_missing = max(self.last_missing, asked_at)
        self.suspected = True

    def contradicted(self) -> None:
        """A list has the job, but as ended or back in the queue."""
        self.first_missing = None
        self.suspected = True

    def exists(self, asked_at: float) -> None:
        """The batch system has described the job when asked about it."""
        self.listed(asked_at)
        self.answered_at = max(self.answered_at, asked_at)
        self.suspected = False

    def unknown(self, asked_at: float, now: float) -> None:
        """The batch system has said that it knows no such job."""
        self.unknown_at = asked_at
        self.asked(now)

    def asked(self, now: float) -> None:
        """A question about the job has brought no word that it exists."""
        self.ask_at = now + ASK_AGAIN_S

    def heard(self) -> None:
        """A worker of the job is connected."""
        self.first_missing = None

    def calls_for_question(self, now: float, *, ending_since: float | None) -> bool:
        """Whether to ask about the job now. ending_since: since when it should be ending."""
        if now < self.ask_at:
            return False
        if self.suspected or now - self.told_at > SILENCE_S:
            return True
        since = None if ending_since is None else max(ending_since, self.answered_at)
        return since is not None and now - since > ENDING_SILENCE_S

    @property
    def is_missing(self) -> bool:
        """Whether lists have lacked the job for long enough."""
        first = self.first_missing
        return first is not None and self.last_missing - first >= CONFIRM_S

    @property
    def seems_gone(self) -> bool:
        """Whether lists lack the job and its id is unknown, though not for long enough."""
        return self.first_missing is not None and self.unknown_at >= self.first_missing

    @property
    def is_absent(self) -> bool:
        """Whether lists have lacked the job for long enough, and its id is unknown after that."""
        first = self.first_missing
        return first is not None and self.is_missing and self.unknown_at >= first + CONFIRM_S
