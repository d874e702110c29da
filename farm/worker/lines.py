"""Models in any language: a program that answers one JSON object per line (docs/lines.md)."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import BYTES, Array, Operation, TensorInfo
from farm.declared import Tensors
from farm.errors import InvalidOutput
from farm.functions import DifferentiableModel, vectors_of
from farm.model import Config, Inputs, Model, info_of
from farm.worker.line_program import LineProgram

START_S = 300.0
"""Time for a program to start and describe its model: some compile first."""

PROTOCOL = 1
"""The version of the line protocol."""

INTERPRETERS = {".R": "Rscript", ".r": "Rscript", ".jl": "julia"}
"""The program that runs a script, by extension."""

TEXTS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
"""Numbers that JSON does not have, as they are written."""

OPERATIONS = frozenset(Operation) - {Operation.STREAM}
FACTS = ("description", "max_batch", "repeatable", "keeps_point", "copies", "version")
"""Attributes of a model that the program may set, besides tensors and operations."""


class LinesModel(DifferentiableModel):
    """A model that is a program of the line protocol; each object starts one and keeps it.

    command: the program and its arguments, as one line that is split as a shell would, or as a
        list; no shell runs it. directory: where it runs, and where relative paths begin; by default
        the current folder. environment: variables besides those of this process.
    start_timeout_s: seconds within which it has to describe its model.
    name: the name it is served under; None: the program's own, or that of its file.

    Raises ValueError if it cannot be started, Unavailable if it does not answer, ModelFailed if it
    ends early.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        directory: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = START_S,
        name: str | None = None,
    ) -> None:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if not words:
            raise ValueError("the command is empty; expected a program, such as lines:./model")
        self._folder = Path(directory or ".").resolve()
        self._environment = {**os.environ, **(environment or {})}
        self._command = [self._found(words[0]), *words[1:]]
        self._limit_s = start_timeout_s
        self._lock = threading.Lock()
        self._program: LineProgram | None = None
        atexit.register(self.close)
        first = self._ask("describe", {"config": {}, "protocol": PROTOCOL}, limit_s=self._limit_s)
        self._first = _tensors(first)
        self._names = list(self._first[1])
        self.name = name or str(first.get("name") or _stem(words))
        self.description = f"program {shlex.join(words)}"
        for fact in FACTS:
            if fact in first:
                setattr(self, fact, first[fact])
        self.operations = _operations(first.get("operations", [Operation.EVALUATE]))
        info_of(self, {})

    def close(self) -> None:
        """End the program; the next call starts it again."""
        if self._program is not None:
            self._program.close()
            self._program = None

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the program's description."""
        if not config:
            return self._first
        return _tensors(self._ask("describe", {"config": config, "protocol": PROTOCOL}))

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the program's outputs."""
        request: dict[str, Any] = {"inputs": _lists(inputs)}
        if self.max_batch > 1:
            request["rows"] = len(inputs[0])
        return self._outputs(self._ask("evaluate", request | {"config": config}))

    def differentiate(
        self,
        operation: Operation,
        wrt: tuple[int, ...],
        inputs: Inputs,
        vectors: Sequence[Array],
        config: Config,
    ) -> Any:
        """Return a derivative, by the program."""
        hessian = operation is Operation.APPLY_HESSIAN
        names = ("out_wrt", "in_wrt1", "in_wrt2") if hessian else ("out_wrt", "in_wrt")
        request: dict[str, Any] = dict(zip(names, wrt, strict=True))
        keys = vectors_of(operation, "sens", "vec")
        request |= zip(keys, map(_numbers, vectors), strict=True)
        reply = self._asked_at(operation.value, request, inputs, config)
        value = _array(reply.get("value"))
        if operation is Operation.VALUE_AND_GRADIENT:
            return self._outputs(reply), value
        return value

    def cost(self, inputs: Inputs, config: Config) -> Any:
        """Return the expected run time, by the program."""
        return _array(self._asked_at("cost", {}, inputs, config).get("value"))

    def _asked_at(self, op: str, wrt: Mapping[str, Any], inputs: Inputs, config: Config) -> Any:
        return self._ask(op, {**wrt, "inputs": _lists(inputs), "config": config})

    def _ask(self, op: str, request: Mapping[str, Any], *, limit_s: float | None = None) -> Any:
        with self._lock:  # a sweep in one program calls from several threads
            if self._program is None or not self._program.lives():
                self.close()
                self._program = LineProgram(
                    self._command, folder=self._folder, environment=self._environment
                )
            return self._program.ask(op, request, limit_s=limit_s)

    def _outputs(self, reply: Any) -> Any:
        outputs = reply.get("outputs")
        if isinstance(outputs, Mapping):
            return {name: _array(value) for name, value in outputs.items()}
        if not isinstance(outputs, list) or len(outputs) != len(self._names):
            found = f"{len(outputs)}" if isinstance(outputs, list) else "no"
            raise InvalidOutput(
                f"model {self.name!r} answered with {found} outputs; expected a list of "
                f"{len(self._names)}, each a list of numbers (docs/lines.md)"
            )
        return {n: _array(value) for n, value in zip(self._names, outputs, strict=True)}

    def _found(self, word: str) -> str:
        program = str(self._folder / word) if "/" in word else word
        found = shutil.which(program, path=self._environment.get("PATH"))
        if found is None:
            raise ValueError(
                f"there is no program {program!r} that can be run; install it, load its module, "
                "or give its path"
            )
        return found


def script(path: Path) -> LinesModel:
    """Return the model of a script in R or Julia, which runs in its own folder."""
    path = path.resolve()
    command = [INTERPRETERS[path.suffix], path.name]
    return LinesModel(command, directory=path.parent)


def models_of_command(command: str) -> dict[str, Model]:
    """Return the model of a command line, by its name."""
    model = LinesModel(command)
    return {model.name: model}


def _stem(words: Sequence[str]) -> str:
    """Return the name of the program's file: of the script, if an interpreter runs it."""
    scripts = [word for word in words[1:] if Path(word).suffix and not word.startswith("-")]
    return Path((scripts or words)[0]).stem


def _operations(named: Any) -> frozenset[Operation]:
    known = {operation.value for operation in OPERATIONS}
    if not isinstance(named, list) or not set(map(str, named)) <= known:
        raise InvalidOutput(f"operations are {named!r}; expected a list of {sorted(known)}")
    return frozenset(map(Operation, named))


def _tensors(reply: Any) -> tuple[Tensors, Tensors]:
    return _declared(reply, "inputs"), _declared(reply, "outputs")


def _declared(reply: Any, what: str) -> Tensors:
    found = reply.get(what)
    if not isinstance(found, Mapping) or not found:
        raise InvalidOutput(
            f"the program describes its {what} as {found!r}; expected an object of names and "
            'shapes, such as {"x": [3]}'
        )
    declared: dict[str, int | Sequence[int] | TensorInfo] = {}
    for name, shape in found.items():
        dtype, texts = "float64", {}
        if isinstance(shape, Mapping):
            dtype = str(shape.get("dtype", dtype))
            texts = {key: shape[key] for key in ("unit", "description") if key in shape}
            shape = shape.get("shape")
        sizes = [shape] if isinstance(shape, int) else shape
        if dtype == BYTES or not isinstance(sizes, list) or sizes.count(-1) > 1:
            raise InvalidOutput(
                f"the program describes {what} {name!r} as {found[name]!r}; expected a shape of "
                "whole numbers, of which at most one is -1, and a type of numbers"
            )
        try:
            declared[name] = TensorInfo(name, tuple(sizes), dtype, **texts)
        except (TypeError, ValueError) as error:
            raise InvalidOutput(f"the program describes {what} {name!r}: {error}") from None
    return declared


def _lists(inputs: Inputs) -> list[list[Any]]:
    return [_numbers(array) for array in inputs.values()]


def _numbers(array: Array) -> list[Any]:
    """Return an array as a flat list in which every number can be written as JSON."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        words = {np.inf: "Infinity", -np.inf: "-Infinity"}
        return [x if np.isfinite(x) else words.get(x, "NaN") for x in flat]
    return flat


def _array(value: Any) -> Any:
    """Return a reply's list with texts such as "NaN" as numbers; anything else is left as it is."""
    if isinstance(value, list):
        value = [_array(each) if isinstance(each, list | str) else each for each in value]
        return value
    return TEXTS.get(value, value) if isinstance(value, str) else value
