"""Units and descriptions of a model's inputs and outputs: their form."""

from __future__ import annotations

from typing import Any

LONGEST_UNIT, LONGEST_DESCRIPTION = 64, 1000
"""In characters: both are part of every description of a model, and stand on axes of plots."""


def check_texts(name: str, unit: Any, description: Any) -> None:
    """Check the unit and the description of the tensor `name`, both of which may be empty.

    Raises TypeError or ValueError unless each is one line of printable characters, and short.
    """
    if unit != "":
        _check(unit, LONGEST_UNIT, f"unit of {name!r}")
    if description != "":
        _check(description, LONGEST_DESCRIPTION, f"description of {name!r}")


def _check(text: Any, most: int, what: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r}, a {type(text).__name__}; expected a text")
    if len(text) > most:
        raise ValueError(f"{what} has {len(text)} characters; expected at most {most}")
    if not text.isprintable() or text != text.strip():
        raise ValueError(
            f"{what} is {text!r}; expected one line of printable characters without spaces around"
        )
