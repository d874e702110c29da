"""Evaluations for tests of the record, and random ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from farm.call import Array, Call, Derivative, ModelInfo, Operation, TensorInfo
from farm.record.entry import MODEL, Entry, Status, encoded, status_of
from farm.record.file import RecordFile
from farm.record.key import keys_of
from farm.storage.frames import Record

SQUARE = ModelInfo("square", (TensorInfo("x", (2,)),), (TensorInfo("y", (1,)),), version="1")


def call(*x: float, config: str = "{}", model: str = "square") -> Call:
    return Call(model, Operation.EVALUATE, (np.array(x),), config=config)


def entry(x: Array, y: Array, *, version: str = "1", run_time_s: float = 0.5) -> Entry:
    asked = Call("square", Operation.EVALUATE, (x,))
    return Entry(
        key=keys_of(asked, SQUARE, version)[0],
        model="square",
        version=version,
        operation=Operation.EVALUATE,
        config="{}",
        inputs=(x,),
        outputs=(y,),
        time=1.7e9,
        run_time_s=run_time_s,
        status=status_of((y,)),
        worker="node1/7-ab",
        client="mcmc",
        chain="chain 3",
    )


def point(k: float) -> Entry:
    """An evaluation of (k, 1), whose output is k."""
    return entry(np.array([k, 1.0]), np.array([k]))


def failed(k: float) -> Entry:
    """An evaluation of (k, 1) that the model did not end."""
    error = ("ModelFailed", "diverged", "trace")
    return replace(point(k), status=Status.FAILED, outputs=(), error=error)


def record(k: float) -> Record:
    return encoded(point(k))


def written(path: Path, *entries: Entry, info: ModelInfo | None = SQUARE) -> Path:
    """Write a record with these evaluations, and the description of their model if there is one."""
    described = [] if info is None else [Record(MODEL, json.dumps(info.to_json()).encode())]
    file = RecordFile(path, indexed=False)
    file.add([*described, *map(encoded, entries)])
    file.close()
    return path


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def key(k: float) -> bytes:
    return point(k).key


def lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


DTYPES = ["float64", "float32", "int64", "uint8", "bool", "complex128"]

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    shape = draw(shapes)
    count = int(np.prod(shape))
    if draw(st.integers(0, 5)) == 0:
        texts = np.empty(count, dtype=object)
        texts[:] = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        return texts.reshape(shape)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    data = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    array: Array = np.frombuffer(data, dtype).reshape(shape)
    return array


vectors = st.lists(st.floats(), max_size=3).map(np.array)
derivatives = st.builds(
    Derivative,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    sens=st.none() | vectors,
    vec=st.none() | vectors,
)
names = st.text(max_size=5)
