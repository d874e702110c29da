"""Shared memory objects: which files are opened, and that no cut or full file ends the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.protocols.kserve.shared_memory.regions import OBJECTS, NotAnObject, SharedFile
from tests.support.shared_objects import SharedObject, open_of, shared_object

pytestmark = pytest.mark.skipif(not OBJECTS.is_dir(), reason="this system has no /dev/shm")


@pytest.fixture
def made() -> Iterator[SharedObject]:
    with shared_object(100) as made:
        yield made


def refusal(key: str) -> str:
    with pytest.raises(NotAnObject) as caught:
        SharedFile(key)
    return str(caught.value)


def test_bytes_are_read_and_written_as_far_as_there_are_any(made: SharedObject) -> None:
    file = SharedFile(made.key)
    assert file.size == 100
    file.write(10, b"abc")
    assert made.path.read_bytes() == bytes(10) + b"abc" + bytes(87)
    into = bytearray(4)
    assert file.read(9, memoryview(into)) == 4
    assert into == b"\0abc"
    made.cut(50)
    assert file.size == 50
    into = bytearray(100)
    assert file.read(0, memoryview(into)) == 50
    assert file.read(60, memoryview(into)) == 0
    made.path.unlink()
    assert file.read(10, memoryview(into)) == 40, "it stays usable"
    assert into[:3] == b"abc"
    for key in (made.key, "/" + "a" * 255):
        assert refusal(key).startswith("there is no such object")


def test_the_descriptor_is_closed_with_the_last_reference(made: SharedObject) -> None:
    file = SharedFile(made.key)
    assert not os.get_inheritable(file.descriptor)
    other = file
    del file
    assert open_of(made.path) == 1
    del other
    assert open_of(made.path) == 0


@pytest.mark.parametrize(
    "key",
    [
        *("", "/", "//", "name", "name/", "/a/b", "/a/", "//a", "/.", "/..", "/../etc/passwd"),
        *("./a", "/a\0b", "/\0", "\0/a", "/../shm/a", "/" + "a" * 256, "/" + "é" * 128),
        "/\udcff\ud800",
    ],
)
def test_what_is_no_key_is_refused(key: str) -> None:
    assert refusal(key).startswith("a key is a slash and a name without further slashes")


def test_a_symbolic_link_is_not_followed(made: SharedObject, tmp_path: Path) -> None:
    for target in (str(made.path), str(tmp_path), "/etc/passwd", "no such file"):
        with shared_object(None) as link:
            link.path.symlink_to(target)
            assert "it is a symbolic link" in refusal(link.key)


def test_only_regular_files_are_opened() -> None:
    with shared_object(None) as other:
        os.mkfifo(other.path)
        assert "it is a FIFO" in refusal(other.key)  # opening it would wait for a writer
    with shared_object(None) as other, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other.path))
        assert "it is a socket" in refusal(other.key)
    with shared_object(None) as other:
        other.path.mkdir()
        try:
            assert "it is a folder" in refusal(other.key)
        finally:
            other.path.rmdir()


@pytest.mark.root
def test_other_peoples_objects_and_devices_are_not_opened(made: SharedObject) -> None:
    os.chown(made.path, 65534, -1)
    assert f"it belongs to user 65534; expected user {os.geteuid()}" in refusal(made.key)
    # In some containers root may make no devices.
    with shared_object(None) as other, contextlib.suppress(PermissionError):
        os.mknod(other.path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        assert "it is a device" in refusal(other.key)


def test_a_lease_of_another_program_does_not_delay(made: SharedObject) -> None:
    """Without O_NONBLOCK, opening would wait for up to 45 seconds."""
    holder = os.open(made.path, os.O_RDONLY)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        pytest.skip("this system's /dev/shm has no leases")
    else:
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            assert "Resource temporarily unavailable" in refusal(made.key)
        finally:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)
    finally:
        os.close(holder)
