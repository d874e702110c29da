"""Names by which leftovers are known; `test_model.py` beside this file removes containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from farm.worker.containers.keeping import Guard, labels, new_name, remove_leftovers

LISTS = """#!/bin/sh
echo "$@" >> {folder}/said
case $1 in ps) cat {folder}/names;; esac
"""


def runtime(folder: Path, *names: str) -> str:
    """Return a program that lists these containers, and notes what it is asked."""
    (folder / "names").write_text("\n".join(names))
    program = folder / "docker"
    program.write_text(LISTS.format(folder=folder))
    program.chmod(0o755)
    return str(program)


def test_names_differ() -> None:
    assert len({new_name() for _ in range(20)}) == 20
    assert labels() == labels()


def test_only_containers_of_ended_processes_are_left_over(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = [f"farm-{ended.pid}-77-a", f"farm-{os.getpid()}-77-a"]  # the id may be used again
    alive = [new_name(), f"farm-other-{ended.pid}", "mine"]
    assert remove_leftovers(runtime(tmp_path, *dead, *alive)) == dead
    asked, removed = (tmp_path / "said").read_text().splitlines()
    assert all(f"label={key}={value}" in asked for key, value in labels().items())
    assert removed == f"rm --force {' '.join(dead)}"


def test_the_guard_removes_when_it_is_closed(tmp_path: Path) -> None:
    guard = Guard(runtime(tmp_path), "n")
    guard.close()
    assert (tmp_path / "said").read_text() == "rm --force n\n"
