"""Folders and files that only this user can open, whatever the umask; names of users."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path

from farm.errors import Unavailable
from farm.wording import worded

log = logging.getLogger(__name__)

NEW = ".new"
"""Ending of files that are not complete yet."""

LOCK = ".farm.lock"
"""The file in a temporary folder that is locked by the process that uses the folder."""

OTHERS = 0o077
"""The permission bits of all users but the owner."""


def private_opener(path: str | os.PathLike[str], flags: int) -> int:
    """Opener for `open(path, mode, opener=...)` that creates files for this user only."""
    return os.open(path, flags, 0o600)


def read_private(path: Path, *, of_anybody: bool = False) -> bytes:
    """Return the content of a file that this user alone can open.

    It checks the open file that it reads, so other users cannot replace it in between. of_anybody:
    root named the file, so it may belong to another user, whom a warning then names.

    Raises Unavailable, which says what to do, and OSError.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Unavailable(f"{path} is not a regular file")
        if found.st_uid != os.geteuid():
            owner = user_name(found.st_uid)
            if not of_anybody or os.geteuid() != 0:
                name_it = "" if os.geteuid() else f", or name it: --to {path.parent}"
                raise Unavailable(f"{path} belongs to user {owner}; expected your own{name_it}")
            log.warning("%s belongs to user %s", path, owner)
        if found.st_mode & OTHERS:
            raise Unavailable(
                f"others can read {path} (mode {found.st_mode & 0o777:o}); it holds keys, so run: "
                f"chmod 600 {path}"
            )
        return file.read()


def replace_private(path: Path, data: bytes) -> None:
    """Write a file atomically, for this user only, through no link. Raises OSError."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}{NEW}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.replace(path)
    except OSError:
        new.unlink()
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed in `replace_private` left; for the folder's holder."""
    for path in folder.glob(f".*.*{NEW}"):
        path.unlink(missing_ok=True)


def make_private_folder(folder: Path, *, known: Collection[str]) -> None:
    """Make a folder that only this user can enter.

    If it exists and others can enter it, their access to it and to its contents is removed. But
    this is done only if every name in the folder matches a pattern of `known`: a folder with other
    things in it may be open to others on purpose.

    Raises Unavailable, which says what to do, and OSError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError("it is not a folder")
    if found.st_uid != os.geteuid():
        raise Unavailable(
            f"folder {folder} belongs to user {user_name(found.st_uid)}, who can read all that is "
            f"in it; give this farm its own {worded('--dir', 'dir=')}"
        )
    if not found.st_mode & OTHERS:
        return
    foreign = sorted(
        name for name in os.listdir(folder) if not any(fnmatch(name, pattern) for pattern in known)
    )
    if not foreign:
        _narrow(folder)
    if folder.stat().st_mode & OTHERS:
        more = f" and has {foreign[0]!r} in it" if foreign else ""
        raise Unavailable(
            f"others can enter the folder {folder}, which is for keys and logs{more} (mode "
            f"{found.st_mode & 0o777:o}, expected 700); give this farm its own "
            f"{worded('--dir', 'dir=')}, or run: "
            f"chmod 700 {folder}"
        )


def _narrow(folder: Path) -> None:
    """Remove others' permissions from a folder and from everything in it that this user owns."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another user's, or already gone
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o777 & ~OTHERS)


def short_folder() -> str:
    """Return a folder for a socket file, whose whole path has to be shorter than 108 bytes."""
    import tempfile  # for this alone

    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < 80 else "/tmp"


class TemporaryFolder:
    """A folder for temporary files of this process, which only this user can enter.

    path: it. `remove_abandoned` removes it if this process is killed before `close`.
    """

    def __init__(self, prefix: str, *, place: Path | None = None) -> None:
        """place: the folder that it is in; None: that of the system, where it is found again."""
        import tempfile

        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        lock = self.path / LOCK
        self._held = os.open(lock.with_name(LOCK + NEW), os.O_RDWR | os.O_CREAT, 0o600)
        with contextlib.suppress(OSError):  # not on every file system; then it is left alone
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._held, _mark(self.path))
            lock.with_name(LOCK + NEW).rename(lock)

    def keep(self) -> None:
        """Leave the folder to the user."""
        for name in (LOCK, LOCK + NEW):
            (self.path / name).unlink(missing_ok=True)
        os.close(self._held)

    def close(self) -> None:
        """Remove the folder."""
        os.close(self._held)  # NFS keeps files that are open, and so their folder
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()


def remove_abandoned() -> None:
    """Remove temporary folders of this user whose process was killed."""
    for folder in list(abandoned()):
        shutil.rmtree(folder, ignore_errors=True)


def abandoned() -> Iterator[Path]:
    """Yield temporary folders of this user whose process on this machine was killed."""
    import tempfile

    for path in Path(tempfile.gettempdir()).iterdir():
        with contextlib.suppress(OSError), _folder_opened(path) as folder:
            held = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                if _is_private(held, stat.S_IFREG) and os.pread(held, 1024, 0) == _mark(path):
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield path
            finally:
                os.close(held)


def _mark(folder: Path) -> bytes:
    """Return the content of a folder's lock; that in a copy, or of another machine, differs.

    On some shared file systems a lock holds on one machine only.
    """
    return os.fsencode(f"{os.uname().nodename} {folder.name}\n")


def _is_private(descriptor: int, kind: int) -> bool:
    """Whether an open file is of this kind and no other user may have put anything into it."""
    found = os.fstat(descriptor)
    own = found.st_uid == os.geteuid() and not found.st_mode & OTHERS
    return own and stat.S_IFMT(found.st_mode) == kind


@contextlib.contextmanager
def _folder_opened(path: Path) -> Iterator[int]:
    """Open a folder that only this user can enter. Raises OSError for anything else."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _is_private(folder, stat.S_IFDIR):
            raise PermissionError(f"{path} is not this user's alone")
        yield folder
    finally:
        os.close(folder)


def user_name(uid: int | None = None) -> str:
    """Return the name of a user, by default this process's, or the number of one without a name."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
