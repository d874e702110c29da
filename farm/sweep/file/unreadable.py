"""What is wrong with a path that is not that of a readable sweep file, and what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from farm.storage.errors import UnsafeFile
from farm.storage.files import beside
from farm.storage.hdf5 import HDF5_ERRORS
from farm.sweep.errors import SweepError
from farm.wording import worded

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file. Source: HDF5 File Format Specification, III.A, Format Signature."""

MOST_NAMES = 5
"""Most names of other files in a message."""

SHOWN_BYTES = 16
"""Most bytes of another file's beginning in a message."""

JOURNAL = ".journal"


def check_path(path: Path) -> None:
    """Raise SweepError if there is no file at `path`, nor a journal to rebuild it from."""
    if path.is_dir():
        there = _names_in(path)
        also = f"; it has {', '.join(there)}" if there else ", and it has no .h5 file"
        raise SweepError(f"{path} is a folder{also}", expected=_expected())
    if path.name.endswith(JOURNAL):
        sweep = path.name.removesuffix(JOURNAL)
        raise SweepError(f"{path} is the journal of a sweep; name the sweep, {sweep}")
    if path.exists() or beside(path, JOURNAL).exists():
        return
    if not path.parent.is_dir():
        raise SweepError(
            f"{path} does not exist, nor does the folder {path.parent}", expected=_expected()
        )
    names = _names_in(path.parent, like=path.name)
    if names:
        raise SweepError(f"{path} does not exist; did you mean {' or '.join(names)}?")
    raise SweepError(f"{path} does not exist", expected=_expected())


def described(path: Path, error: Exception) -> SweepError:
    """Return the error for a file that HDF5 cannot read: what it is instead, or its damage."""
    if isinstance(error, UnsafeFile):
        return SweepError(str(error))
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(SHOWN_BYTES)
    except OSError as other:
        return SweepError(f"{path} cannot be read: {other.strerror or other}")
    if not size:
        return SweepError(f"{path} cannot be read: it is empty", expected=_expected())
    if not SIGNATURE.startswith(start[: len(SIGNATURE)]):
        return SweepError(
            f"{path} cannot be read: it is not an HDF5 file, as it begins with {start!r}",
            expected=_expected(),
        )
    if isinstance(error, BlockingIOError):
        return SweepError(f"{path} cannot be read: another program writes it; close it there")
    why = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    lacks = f"it has no {why!r}" if isinstance(error, KeyError) and " " not in why else why
    return SweepError(
        f"{path} cannot be read: it is damaged or incomplete, with {size} bytes ({lacks}); "
        f"copy it again, or continue the sweep where {path.name}{JOURNAL} is beside it"
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise SweepError for errors of HDF5 in the block, which only reads the file at `path`."""
    try:
        yield
    except HDF5_ERRORS as error:
        raise described(path, error) from error


def _expected() -> str:
    return f"expected a sweep file, which {worded('`farm sweep -o`', 'farm.sweep(out=...)')} writes"


def _names_in(folder: Path, *, like: str = "") -> list[str]:
    """Return names of HDF5 files in a folder; `like`: only those that resemble this name."""
    try:
        names = sorted(path.name for path in folder.glob("*.h5") if path.exists())
    except OSError:
        return []
    if like:
        stems = [name.removesuffix(".h5") for name in names]
        return [f"{stem}.h5" for stem in get_close_matches(like.removesuffix(".h5"), stems, n=2)]
    shown = names[:MOST_NAMES]
    return [*shown, f"{len(names) - len(shown)} others"] if len(names) > len(shown) else shown
