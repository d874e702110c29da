"""The points of a long request as calls that are read a batch at a time.

A reader process turns a request into batches, each a message of `wire.py`; the front door reads a
batch when its turn has come, so that a million points are never read in one go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from farm.call import Array, Call, ModelInfo
from farm.errors import FarmError, error_named
from farm.protocols import wire
from farm.protocols.json_numbers import NonFinite
from farm.protocols.points import Form, Points, decode_points

ALIGNMENT = 8

BATCH = 256
"""Points that are read at once, which takes less than a millisecond."""


class Batches(NamedTuple):
    """`points` of them in batches, whose frames lie one behind the other in `data`.

    A batch is the errors of some points as JSON, and the frames of a message with the other ones.
    starts: where in `ends` the frames of each batch begin, and behind the last; ends: of frames.
    """

    form: Form
    points: int
    data: wire.Buffer
    starts: Array
    ends: Array


def decode_batches(
    body: bytes, non_finite: NonFinite, infos: Mapping[str, ModelInfo]
) -> tuple[str, Batches | None]:
    """The config of a request, and its points if `infos` has the model's description for it.

    Raises as `decode_points`.
    """
    points = decode_points(body, non_finite)
    info = infos.get(points.config)
    if info is None:
        return points.config, None
    parts: list[wire.Buffer] = []
    starts, ends = [0], [0]
    for start in range(0, len(points), BATCH):
        for frame in _batch(points, start, info):
            size = memoryview(frame).nbytes
            parts += (frame, bytes(-size % ALIGNMENT))
            ends += (ends[-1] + size, ends[-1] + size + -size % ALIGNMENT)
        starts.append(len(ends) // 2)
    where = np.array(starts), np.array(ends)
    return points.config, Batches(points.form, len(points), b"".join(parts), *where)


def _batch(points: Points, start: int, info: ModelInfo) -> tuple[wire.Buffer, ...]:
    calls: list[tuple[int, Call]] = []
    errors: list[tuple[int, str, str]] = []
    for index in range(start, min(start + BATCH, len(points))):
        try:
            calls.append((index, points.call(index, info)))
        except FarmError as error:
            errors.append((index, type(error).__name__, error.message))
    return json.dumps(errors).encode("ascii"), *wire.encode_calls(calls)


class ReadPoints:
    """Points that a reader process has read; as `Points` to whoever starts their calls."""

    def __init__(self, batches: Batches) -> None:
        self.form = batches.form
        self._batches = batches
        self._number = -1  # of the batch that was read last
        self._calls: dict[int, Call | FarmError] = {}

    def __len__(self) -> int:
        return self._batches.points

    def call(self, index: int, info: ModelInfo) -> Call:
        """The call for one point. Raises InvalidInput where the point's form is wrong."""
        number = index // BATCH
        if number != self._number:
            errors, *frames = self._frames(number)
            self._calls = dict(wire.decode_calls(wire.decode(frames))[1])
            for place, kind, message in json.loads(bytes(errors)):
                self._calls[place] = error_named(kind, message)
            self._number = number
        call = self._calls[index]
        if isinstance(call, FarmError):
            raise call
        return call

    def _frames(self, number: int) -> list[memoryview]:
        _, _, data, starts, ends = self._batches
        view = memoryview(data)
        frames = range(starts[number], starts[number + 1])
        return [view[ends[2 * frame] : ends[2 * frame + 1]] for frame in frames]
