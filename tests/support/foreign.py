"""HDF5 files as an adversary makes them: what one refers to, or declares, is not in the file."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np

SECRET = np.arange(100.0, 164.0).tobytes()
"""The content of `secret` beside an adversary's file: neither read nor written by anybody."""

ATTACKS = {
    "external storage": "is stored in another file, .*secret",
    "a pipe as storage": "is stored in another file, .*pipe",
    "virtual": "is a virtual dataset",
    "virtual over many files": "is a virtual dataset",
    "virtual over a pipe": "is a virtual dataset",
    "soft link": "is a link",
    "external link": "is a link",
    "link to a pipe": "is a link",
    "dangling link": "is a link",
    "plugin": r"needs a filter plugin, .*\(32001\)",
    "2^40 points": r"has the shape \(1099511627776,\), for which a file of .* is too small",
    "2^80 points": r"has the shape \(1099511627776, 1099511627776\)",
    "wide text": "is too small",
    "large chunk": r"has the shape \(268435456,\)",
}
"""What an adversary may do to a dataset, and how it is refused."""


def replaced(path: Path, name: str, attack: str) -> str:
    """Replace a dataset of a file by one of an adversary; return the pattern of the refusal."""
    secret, pipe, private = (path.parent / n for n in ("secret", "pipe", "private.h5"))
    secret.write_bytes(SECRET)
    if not pipe.exists():
        os.mkfifo(pipe)
    with h5py.File(private, "w") as file:
        file["x"] = np.arange(8.0)
    with h5py.File(path, "r+") as file:
        data = file[name]
        shape, dtype = data.shape, data.dtype
        del file[name]
        size = int(np.prod(shape)) * dtype.itemsize
        source = pipe if "pipe" in attack else private
        if "storage" in attack:
            stored = pipe if "pipe" in attack else secret
            file.create_dataset(name, shape, dtype, external=[(str(stored), 0, max(size, 512))])
        elif attack == "virtual over many files":
            _virtual_over_many(file, name, path.parent)
        elif "virtual" in attack:
            layout = h5py.VirtualLayout(shape, dtype)
            layout[...] = h5py.VirtualSource(str(source), "x", shape)
            file.create_virtual_dataset(name, layout)
        elif attack == "soft link":
            file[name] = h5py.SoftLink("/point")
        elif attack == "dangling link":
            file[name] = h5py.SoftLink("/nowhere")
        elif "link" in attack:
            file[name] = h5py.ExternalLink(str(source), "/x")
        else:
            _declared(file, name, attack, shape, dtype)
    return ATTACKS[attack]


def _virtual_over_many(file: h5py.File, name: str, folder: Path) -> None:
    """Make a dataset whose very shape is read from the files virtual-0.h5, virtual-1.h5, ..."""
    with h5py.File(folder / "virtual-0.h5", "w") as other:
        other["x"] = np.arange(8.0)
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    most = h5py.h5s.create_simple((8,), (h5py.h5s.UNLIMITED,))
    most.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (8,), (8,))
    made.set_virtual(
        most, str(folder / "virtual-%b.h5").encode(), b"/x", h5py.h5s.create_simple((8,))
    )
    space = h5py.h5s.create_simple((8,), (h5py.h5s.UNLIMITED,))
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    kind = h5py.h5t.py_create(np.dtype("f8"))
    made_id = h5py.h5d.create(file.id, None, kind, space, made)
    h5py.h5o.link(made_id, file.id, name.encode(), lcpl=links)


def _declared(
    file: h5py.File, name: str, attack: str, shape: tuple[int, ...], dtype: np.dtype
) -> None:
    """Make a dataset that is small in the file, and large or of an unknown filter when read."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if attack == "plugin":
        made.set_chunk(tuple(max(1, n) for n in shape))
        made.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (1, 2))
    elif attack == "wide text":
        dtype, shape = np.dtype("S1000000000"), (8,)
    elif attack == "large chunk":
        made.set_chunk((2**28,))
        made.set_deflate(1)
        shape = (8,)
    else:
        shape = (2**40,) * (2 if "80" in attack else 1)
        made.set_chunk((64,) * len(shape))
    space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED,) * len(shape))
    if attack == "wide text":
        made.set_chunk((1,))
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    found = h5py.h5d.create(file.id, None, h5py.h5t.py_create(dtype, logical=True), space, made)
    h5py.h5o.link(found, file.id, name.encode(), lcpl=links)
