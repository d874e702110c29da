"""The points of a long request as calls that are decoded batch by batch.

A reader process turns a request into batches, each a message of `wire/messages.py`; the front door
decodes a batch when its points are needed, so that a million points are never decoded at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from farm.call import Array, Buffer, Call, ModelInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, error_named
from farm.protocols.points.codec import LineForm, Points, decode_points
from farm.wire import messages as wire

ALIGNMENT = 8

BATCH = 256
"""Points that are decoded at once, which takes less than a millisecond."""


class Batches(NamedTuple):
    """The batches of `points` points, whose frames are concatenated in `data`.

    A batch is a JSON list of the errors of some points, and the frames of a message with the
    others. starts: number of the first frame of each batch, and of all frames; ends: offsets in
    `data` of the start and the end of each frame, alternating.
    """

    form: LineForm
    points: int
    data: Buffer
    starts: Array
    ends: Array


TRAVELS = (LineForm, Batches)
"""Classes that may cross to and from a reader process, in addition to farm's own."""


def decode_batches(
    body: bytes, non_finite: NonFinite, infos: Mapping[str, ModelInfo]
) -> tuple[str, Batches | None]:
    """Return the config of a request, and its points if `infos` describes the model for it.

    Raises as `decode_points`.
    """
    points = decode_points(body, non_finite)
    info = infos.get(points.config)
    if info is None:
        return points.config, None
    parts: list[Buffer] = []
    starts, ends = [0], [0]
    for start in range(0, len(points), BATCH):
        for frame in _batch(points, start, info):
            size = memoryview(frame).nbytes
            parts += (frame, bytes(-size % ALIGNMENT))
            ends += (ends[-1] + size, ends[-1] + size + -size % ALIGNMENT)
        starts.append(len(ends) // 2)
    where = np.array(starts), np.array(ends)
    return points.config, Batches(points.form, len(points), b"".join(parts), *where)


def _batch(points: Points, start: int, info: ModelInfo) -> tuple[Buffer, ...]:
    calls: list[tuple[int, Call]] = []
    errors: list[tuple[int, str, str]] = []
    for index in range(start, min(start + BATCH, len(points))):
        try:
            calls.append((index, points.call(index, info)))
        except FarmError as error:
            errors.append((index, type(error).__name__, error.message))
    return json.dumps(errors).encode("ascii"), *wire.encode_calls(calls)


class ReadPoints:
    """Points that a reader process has decoded, with the interface of `Points`."""

    def __init__(self, config: str, batches: Batches) -> None:
        self.config = config
        self.form = batches.form
        self._batches = batches
        self._number = -1  # of the last decoded batch
        self._calls: dict[int, Call | FarmError] = {}

    def __len__(self) -> int:
        return self._batches.points

    def call(self, index: int, info: ModelInfo) -> Call:
        """Return the call of one point. Raises InvalidInput if the point's form is wrong."""
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
