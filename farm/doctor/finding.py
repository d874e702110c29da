"""The result of a check: one line, its weight, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Weight(StrEnum):
    """How much a finding matters: WRONG keeps farm from working, WARNING may do so later."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `farm doctor`.

    subject: the thing that was checked; text: the result; remedy: what to do, empty if nothing.
    """

    subject: str
    weight: Weight
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject, Weight.OK, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding that may keep farm from working later."""
    return Finding(subject, Weight.WARNING, text, remedy)


def wrong(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding that keeps farm from working."""
    return Finding(subject, Weight.WRONG, text, remedy)
