"""Versions of models, by their names: `net/2` is version 2 of `net`, and `net` itself is version 1.

A version is a number without leading zeros. `net/1` is a model of its own beside `net`, which is
version 1 already. Every model can also be called by its whole name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

VERSION = "1"
"""The version of a model whose name has none."""

ANY = ("", "0")
"""Versions in requests that mean the greatest one; 0 is TensorFlow Serving's word for it."""

_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


class Numbered(NamedTuple):
    """A model as clients see it; served_as: its whole name in the farm."""

    name: str
    version: str
    served_as: str


def numbered(served_as: str, names: Collection[str]) -> Numbered:
    """Return the name and version of a served model. names: of all that are served."""
    name, _, number = served_as.rpartition("/")
    if name and _NUMBER.fullmatch(number) and not (number == VERSION and name in names):
        return Numbered(name, number, served_as)
    return Numbered(served_as, VERSION, served_as)


def as_asked(asked: str, served_as: str) -> Numbered:
    """Return a served model under the name `asked`, by which a client called it."""
    number = served_as.removeprefix(f"{asked}/")
    if number != served_as and _NUMBER.fullmatch(number):
        return Numbered(asked, number, served_as)
    return Numbered(served_as, VERSION, served_as)


def is_known(name: str, names: Collection[str]) -> bool:
    """Whether a client may call a model `name`: it is served, or a version of it is."""
    return name in names or any(numbered(served, names).name == name for served in names)


class Versions:
    """The versions of all served models."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._of: dict[str, dict[int, str]] = {}
        for served_as in self._names:
            name, version, _ = numbered(served_as, self._names)
            if name != served_as:
                self._of.setdefault(name, {})[int(version)] = served_as
        for name in self._of.keys() & self._names:
            self._of[name][int(VERSION)] = name

    def of(self, name: str) -> dict[str, str]:
        """Return the whole names of a model's versions by version, in order."""
        if name in self._of:
            return {str(number): self._of[name][number] for number in sorted(self._of[name])}
        return {VERSION: name} if name in self._names else {}

    def served_as(self, name: str, version: str, without: Collection[str] = ()) -> str | None:
        """Return the whole name of a version, or of the greatest for `ANY`; None if there is none.

        without: whole names to pass over if another version is left.
        """
        numbers = self._of.get(name)
        if numbers is None:
            return name if name in self._names and version in (*ANY, VERSION) else None
        if version in ANY:
            left = [number for number, served in numbers.items() if served not in without]
            return numbers[max(left or numbers)]
        return self.of(name).get(version)
