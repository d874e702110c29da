"""Jobs for reader processes in their tests; the processes import this module by its name."""

from __future__ import annotations

import os
import resource
import signal
import time


def length_of(body: bytes) -> int:
    return len(body)


def pid_of(body: bytes) -> int:
    return os.getpid()


def limits(body: bytes) -> tuple[int, str]:
    with open("/proc/self/oom_score_adj") as score:
        return resource.getrlimit(resource.RLIMIT_AS)[0], score.read().strip()


def grown(body: bytes) -> int:
    return len(bytearray(3 << 30))


def dies(body: bytes) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(path: str, body: bytes) -> str:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def waits_for(path: str) -> str:
    """Report that it runs, and wait until the test releases it."""
    os.close(os.open(f"{path}.begun", os.O_CREAT))
    while not os.path.exists(path):
        time.sleep(0.01)
    return path


def sleeps(body: bytes) -> None:
    time.sleep(30)


def breaks(body: bytes) -> None:
    raise ZeroDivisionError("a fault of farm's")


def unknown(body: bytes) -> object:
    return object()
