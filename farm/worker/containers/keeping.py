"""Removal of docker's and podman's containers, which outlive the program that started them.

A guard, a small shell in a session of its own, waits for the end of the process that started the
container and removes it, also after SIGKILL. If the guard was killed as well, the next process that
starts a container on this machine removes it by its labels.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from farm.storage.lock import born, is_alive

ASK_S = 30.0
"""Time for a short question to the runtime."""

USER, PLACE = "farm.user", "farm.place"
"""Labels of each container: the user, and the machine with its table of processes."""

GUARD = 'read -r _; "$@" >/dev/null 2>&1; sleep 2; exec "$@" >/dev/null 2>&1'
"""Removes twice: a runtime that was just asked to start the container may still be at it."""


def labels() -> dict[str, str]:
    """Return the labels of this process's containers."""
    return {USER: str(os.getuid()), PLACE: _place()}


def new_name() -> str:
    """Return a name for a container of this process."""
    return f"farm-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}"


class Guard:
    """A program that removes a container when this process ends, or at `close`."""

    def __init__(self, program: str, name: str) -> None:
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "farm-guard", *_remove(program, [name])],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it survives the end of this process's group
            )
        finally:
            os.close(read_end)
        self._command = _remove(program, [name])

    def close(self) -> None:
        """Remove the container now."""
        asked(self._command)
        self._process.kill()
        self._process.wait()
        os.close(self._write_end)


def remove_leftovers(program: str) -> list[str]:
    """Remove containers of this user whose process on this machine has ended; return their names.

    Raises OSError, subprocess.SubprocessError with what the runtime printed.
    """
    wanted = [f"label={key}={value}" for key, value in labels().items()]
    filters = [word for label in wanted for word in ("--filter", label)]
    listed = asked([program, "ps", "--all", *filters, "--format", "{{.Names}}"], check=True)
    dead = [name for name in listed.split() if not _owner_lives(name)]
    if dead:
        asked(_remove(program, dead))
    return dead


def _owner_lives(name: str) -> bool:
    """Whether the process in a container's name lives; True for a name that farm did not make."""
    match name.split("-"):
        case ["farm", pid, started, _] if pid.isdecimal():
            return _started(int(pid)) == started
    return True


def _remove(program: str, names: Sequence[str]) -> list[str]:
    at_once = ["--time", "0"] if Path(program).name == "podman" else []
    return [program, "rm", "--force", *at_once, *names]


def asked(command: Sequence[str], *, check: bool = False) -> str:
    """Return what a short command of the runtime prints.

    check: raise CalledProcessError if it fails. Raises OSError, subprocess.SubprocessError.
    """
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=check,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def _place() -> str:
    """Return a text that is the same for all processes whose ids this process can look up."""
    try:
        table = os.readlink("/proc/self/ns/pid")
    except OSError:
        table = ""
    return blake2b(f"{socket.gethostname()} {table}".encode(), digest_size=8).hexdigest()


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel's clock; "" if it does not exist.

    "0" on a system that does not say when.
    """
    return born(pid) or ("0" if is_alive(pid) else "")
