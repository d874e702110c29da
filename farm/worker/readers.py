"""Readers for `CommandModel(read=...)`: each returns numbers from the path of the output file.

All accept `file=`, the name of another file in the same folder. Numbers may be written as Fortran
does, 1.0D-03 or 0.15-119. Each raises ValueError that says what it looked for and what the file
holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.expression import number

FIRST_BYTES = 200
_D_EXPONENT = re.compile(r"[dDqQ](?=[+-]?\d+$)")
_BARE_EXPONENT = re.compile(r"(?<=\.)(\d*)(?=[+-]\d{3}$)")
"""Fortran leaves the letter out where an exponent of three digits takes its place."""


def regex(pattern: str, *, file: str | None = None) -> Callable[[Path], Array]:
    """Read the numbers in all matches of `pattern`: its groups, or without groups whole matches."""
    compiled = re.compile(pattern, re.MULTILINE)

    def read(output: Path) -> Array:
        path = _path(output, file)
        text = path.read_text(errors="replace")
        matches = list(compiled.finditer(text))
        if not matches:
            raise ValueError(f"{path.name} has no match of {pattern!r}; it {_begins(text)}")
        found = [part for match in matches for part in (match.groups() or (match[0],))]
        return np.array([_number(part, path) for part in found])

    return read


def column(
    which: int | str, *, file: str | None = None, delimiter: str | None = None, skip: int = 0
) -> Callable[[Path], Array]:
    """Read one column of a text table, by position from 0, or by its name in the header line.

    delimiter: None means white space; skip: lines before the table. Empty lines and lines that
    begin with # are left out.
    """

    def read(output: Path) -> Array:
        path = _path(output, file)
        lines = path.read_text(errors="replace").splitlines()[skip:]
        index = which
        if isinstance(index, str):
            header = [h.strip() for h in (lines or [""])[0].lstrip("# ").split(delimiter)]
            if index not in header:
                raise ValueError(f"{path.name} has no column {index!r}; its columns are {header}")
            index = header.index(index)
            lines = lines[1:]
        rows = [line.split(delimiter) for line in lines if line.strip() and line.strip()[0] != "#"]
        short = next((row for row in rows if not -len(row) <= index < len(row)), None)
        if short is not None:
            raise ValueError(f"{path.name} has a line without column {which}: {short}")
        return np.array([_number(row[index], path) for row in rows])

    return read


def json_value(*keys: str | int, file: str | None = None) -> Callable[[Path], Any]:
    """Read data[keys[0]][keys[1]]... of a JSON file; without keys all of it."""

    def read(output: Path) -> Any:
        path = _path(output, file)
        text = path.read_text()
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path.name} is not JSON ({error}); it {_begins(text)}") from None
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(
                    f"{path.name} has nothing at {list(keys)}; {_begins(text)}"
                ) from None
        return value

    return read


def npy(*, file: str | None = None) -> Callable[[Path], Array]:
    """Read the array in a file that `numpy.save` wrote."""

    def read(output: Path) -> Array:
        array: Array = np.load(_path(output, file), allow_pickle=False)
        return array

    return read


def _path(output: Path, file: str | None) -> Path:
    path = output if file is None else output.parent / file
    if not path.exists():
        there = sorted(p.name for p in output.parent.iterdir())
        raise ValueError(f"the program wrote no {path.name!r}; the folder holds {there}")
    return path


def _number(text: str | None, path: Path) -> float:
    text = (text or "").strip()
    try:
        return number(_BARE_EXPONENT.sub(r"\1e", _D_EXPONENT.sub("e", text)))
    except ValueError:
        raise ValueError(f"{path.name} has {text!r} where a number is expected") from None


def _begins(text: str) -> str:
    return f"begins {text[:FIRST_BYTES]!r}" if text else "is empty"
