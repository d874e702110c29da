"""Units, descriptions and labels of a model's inputs and outputs: their form."""

from __future__ import annotations

from typing import Any

LONGEST_UNIT, LONGEST_DESCRIPTION = 64, 1000
"""In characters: both are part of every description of a model, and stand on axes of plots."""

LONGEST_LABELS = 512 * 1024
"""Of all labels of a tensor together: they are part of every description, too."""


def check_texts(name: str, unit: Any, description: Any, form: Any) -> None:
    """Check the unit, description and format of the tensor `name`, all of which may be empty.

    Raises TypeError or ValueError unless the first two are one short line of printable characters.
    """
    if form not in ("", "NCHW", "NHWC"):
        raise ValueError(f"format of {name!r} is {form!r}; expected NCHW or NHWC")
    if unit != "":
        _check(unit, LONGEST_UNIT, f"unit of {name!r}")
    if description != "":
        _check(description, LONGEST_DESCRIPTION, f"description of {name!r}")


def check_labels(name: str, labels: tuple[str, ...]) -> None:
    """Check the labels of the entries of the tensor `name`, of which there may be none.

    Raises TypeError or ValueError unless each is a text, and all together are short.
    """
    size = 0
    for i, label in enumerate(labels):
        if not isinstance(label, str):
            raise TypeError(
                f"label {i} of {name!r} is {label!r}, a {type(label).__name__}; expected a text"
            )
        size += len(label)
    if size > LONGEST_LABELS:
        raise ValueError(
            f"the labels of {name!r} have {size} characters; expected at most {LONGEST_LABELS}"
        )


def _check(text: Any, most: int, what: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r}, a {type(text).__name__}; expected a text")
    if len(text) > most:
        raise ValueError(f"{what} has {len(text)} characters; expected at most {most}")
    if not text.isprintable() or text != text.strip():
        raise ValueError(
            f"{what} is {text!r}; expected one line of printable characters without spaces around"
        )
