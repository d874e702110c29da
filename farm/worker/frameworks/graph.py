"""Base class of models in files of other libraries: functions of arrays with declared tensors.

Such a file gives names, types and sizes of its tensors, but not which axis is the batch. That is
inferred here, and tested before calls share an evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import BYTES, Array, TensorInfo, numpy_dtype
from farm.errors import InvalidInput, InvalidOutput
from farm.model import Config, Inputs, Model
from farm.wording import one_line

DEFAULT_MAX_BATCH = 64

ROUNDING = {2: 0.05, 4: 3e-4, 8: 1e-8}
"""Tolerance, by bytes of a number, for two ways to compute it: relative, about the square root of
its precision.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Port:
    """One tensor as declared in its file: a size given as text varies, by its symbol or by ''."""

    name: str
    sizes: tuple[int | str, ...]
    dtype: str
    unit: str = ""
    description: str = ""

    def tensor(self, *, batched: bool) -> TensorInfo:
        """Return the tensor of one evaluation: no batch axis, -1 for a size that varies."""
        sizes = self.sizes[1:] if batched else self.sizes
        shape = tuple(n if isinstance(n, int) else -1 for n in sizes)
        return TensorInfo(self.name, shape, self.dtype, self.unit, self.description)


class GraphModel(Model):
    """A model whose evaluation is one run of a graph; a subclass opens it and writes `run`.

    batched: whether the graph's tensors have a batch axis in front, also when max_batch is 1.
    warm: whether the graph has run; False if it rejected made-up inputs.
    """

    batched: bool = False
    warm: bool = False
    _symbols: Sequence[tuple[str, int, str]] = ()
    """Input, axis counted from the end, and symbol of each size that varies by name."""

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the graph's outputs in its own order, for arrays in the graph's form."""
        raise NotImplementedError(f"{type(self).__name__} defines no run")

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the graph's outputs by name. The config is not used."""
        arrays = list(inputs.values())
        self.check_symbols(arrays)
        if self.batched and self.max_batch == 1:
            outputs = [y.reshape(y.shape[1:]) for y in self.run([x[None] for x in arrays])]
        else:
            outputs = self.run(arrays)
        return dict(zip(self.outputs, outputs, strict=True))

    def check_symbols(self, arrays: Sequence[Array]) -> None:
        """Raise InvalidInput if sizes differ to which the file gives one symbol."""
        known: dict[str, tuple[int, str]] = {}
        for name, axis, symbol in self._symbols:
            size = arrays[list(self.inputs).index(name)].shape[axis]
            first, where = known.setdefault(symbol, (size, name))
            if size != first:
                raise InvalidInput(
                    f"input {name!r} has {size} along axis {axis}, where input {where!r} has "
                    f"{first}; model {self.name!r} calls both {symbol!r}"
                )

    def declare(
        self,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        max_batch: int | None,
        *,
        strict: bool = False,
    ) -> None:
        """Set inputs, outputs and max_batch from the file's declarations, and warm the graph up.

        The first axis is the batch axis if its size varies, is the same in all tensors, and rows
        evaluated together give the same results as alone. max_batch: None is DEFAULT_MAX_BATCH with
        such an axis and 1 without. Raises ValueError if max_batch is more than the graph supports.
        """
        if max_batch is not None and max_batch < 1:
            raise ValueError(f"max_batch is {max_batch}; expected 1 or more")
        self.batched = share_first_axis(inputs, outputs)
        most = DEFAULT_MAX_BATCH if self.batched else 1
        self._try_once(inputs, outputs, strict=strict)
        if self.batched:
            trouble, rows_mix = self._try_rows(inputs, outputs)
            if trouble:
                most, self.batched = 1, not rows_mix
        else:
            trouble = "its tensors share no first axis of any size"
        if max_batch is not None and max_batch > 1 and most == 1:
            raise ValueError(f"max_batch is {max_batch}, but {trouble}; leave it out")
        if trouble and self.batched:
            log.warning("%s is evaluated row by row: %s", self.name, trouble)
        self.max_batch = most if max_batch is None else max_batch
        self.inputs = {port.name: port.tensor(batched=self.batched) for port in inputs}
        self.outputs = {port.name: port.tensor(batched=self.batched) for port in outputs}
        self._symbols = [
            (port.name, axis - len(port.sizes), size)
            for port in inputs
            for axis, size in enumerate(port.sizes)
            if isinstance(size, str) and size and (axis > 0 or not self.batched)
        ]

    def _try_once(self, inputs: Sequence[Port], outputs: Sequence[Port], *, strict: bool) -> None:
        """Evaluate made-up inputs, which warms the graph up."""
        arrays = made_up(inputs, rows=1)
        try:
            found = self.run(arrays)
        except Exception as error:
            text = one_line(error)
            if strict or isinstance(error, InvalidOutput):
                raise ValueError(f"it does not run as declared: {text}") from error
            log.warning("%s is not warmed up, as it rejects made-up inputs: %s", self.name, text)
            return
        check_outputs(found, outputs)
        self.warm = True

    def _try_rows(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> tuple[str, bool]:
        """Return why rows cannot be evaluated together, or ''; and whether they mix."""
        if not self.warm:
            return "", False
        both = made_up(inputs, rows=2)
        alone = [self.run([x[i : i + 1] for x in both]) for i in (0, 1)]
        try:
            together = self.run(both)
        except Exception as error:
            return f"two rows at once raise {one_line(error)}", False
        for port, *arrays in zip(outputs, together, *alone, strict=True):
            joined = np.concatenate(arrays[1:])
            if arrays[0].shape != joined.shape or not close(arrays[0], joined):
                return f"output {port.name!r} of a row depends on the rows beside it", True
        return "", False


def share_first_axis(inputs: Sequence[Port], outputs: Sequence[Port]) -> bool:
    """Whether all tensors begin with an axis whose size varies, under one symbol in the inputs.

    Outputs may have another symbol: exporters that infer shapes invent new names.
    """
    firsts = [port.sizes[0] if port.sizes else 0 for port in (*inputs, *outputs)]
    symbols = {first for first in firsts[: len(inputs)] if first}
    return bool(inputs) and all(isinstance(first, str) for first in firsts) and len(symbols) <= 1


def made_up(ports: Sequence[Port], *, rows: int) -> list[Array]:
    """Return reproducible arrays that fit, numbers from 0 to 1; a varying first size is `rows`.

    Other varying sizes become 2.
    """
    rng = np.random.default_rng(1)
    arrays: list[Array] = []
    for port in ports:
        sizes = [n if isinstance(n, int) else 2 for n in port.sizes]
        if port.sizes and isinstance(port.sizes[0], str):
            sizes[0] = rows
        dtype = numpy_dtype(port.dtype)
        if port.dtype == BYTES:
            arrays.append(np.full(sizes, b"", dtype))
        elif "float" in port.dtype:
            arrays.append(rng.random(sizes).astype(dtype))
        else:
            arrays.append(rng.integers(0, 2, sizes).astype(dtype))
    return arrays


def close(one: Array, other: Array) -> bool:
    """Whether two arrays differ only by rounding; the kernels depend on the number of rows."""
    if "float" not in one.dtype.name:
        return bool(np.array_equal(one, other))
    slack = ROUNDING[one.dtype.itemsize]
    one, other = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=slack, atol=slack * scale, equal_nan=True))


def check_outputs(arrays: Sequence[Array], ports: Sequence[Port]) -> None:
    """Raise ValueError if arrays do not match their declaration."""
    if len(arrays) != len(ports):
        raise ValueError(
            f"it gives {len(arrays)} outputs, declared are {[port.name for port in ports]}"
        )
    for array, port in zip(arrays, ports, strict=True):
        fits = len(array.shape) == len(port.sizes) and all(
            n == size or isinstance(size, str)
            for n, size in zip(array.shape, port.sizes, strict=True)
        )
        if not fits:
            raise ValueError(
                f"output {port.name!r} has shape {array.shape}, declared is {port.sizes}"
            )
