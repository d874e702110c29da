"""Unnamed files in memory: round trips of frames, with memfd and without."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from farm.machine import memory_file
from farm.machine.memory_file import (
    LARGE_BYTES,
    append,
    file_of,
    frames_in,
    let_go,
    mapped,
    new_file,
)
from tests.support.time_limits import scaled


@pytest.fixture(params=["memfd", "temporary"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "temporary":
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.usefixtures("_kind")
def test_frames_come_back_without_a_copy() -> None:
    frames: list[bytes | memoryview] = [b"head", b"", np.arange(10_000.0).data, b"x"]
    descriptor = file_of(frames)
    back = frames_in(descriptor)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)  # the mapping stays
    assert [bytes(frame) for frame in back] == [bytes(frame) for frame in frames]
    numbers = np.frombuffer(back[2])
    assert numbers.ctypes.data % 64 == 0
    assert not numbers.flags.writeable


@pytest.mark.usefixtures("_kind")
def test_a_file_grows_and_has_no_name() -> None:
    descriptor = new_file()
    assert bytes(mapped(descriptor)) == b""
    append(descriptor, b"ab")
    append(descriptor, memoryview(b"cd"))
    assert bytes(mapped(descriptor)) == b"abcd"
    assert "(deleted)" in os.readlink(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_a_file_that_cannot_be_written_is_closed(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TypeError):
        file_of([b"a", object()])  # type: ignore[list-item]  # that is the point
    assert os.listdir("/proc/self/fd") == before


def threads_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many threads free memory while `work` runs."""
    count = 0

    def start(target: Callable[[], object], _: tuple[()]) -> None:
        nonlocal count
        count += 1
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    with monkeypatch.context() as patched:
        patched.setattr(memory_file, "start_new_thread", start)
        work()
    return count


@pytest.mark.parametrize("large", [False, True])
def test_large_ones_are_given_back_by_another_thread(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = LARGE_BYTES if large else LARGE_BYTES - 1
    before = len(os.listdir("/proc/self/fd"))
    descriptor = new_file()
    append(descriptor, bytes(size))
    views = [np.frombuffer(mapped(descriptor), np.uint8)[1:]]
    assert threads_of(lambda: let_go(descriptor, size), monkeypatch) == large
    assert views[0].sum() == 0  # the mapping stays
    assert threads_of(views.clear, monkeypatch) == large
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_ends_waits_for_none_of_them() -> None:
    program = (
        "import numpy as np\n"
        "from farm.bodies.body import HeldBody\n"
        "held = HeldBody(1 << 30)\n"
        "held.add(bytes(5 << 20))\n"
        "ring = [held, np.frombuffer(held.view(), np.uint8)]\n"
        "ring.append(ring)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(20.0))
