"""A sweep that a command opened: it stays as it was unless it is handed over."""

from __future__ import annotations

from pathlib import Path

from farm.cli.sweep_farm import Target
from farm.cli.sweep_opened import OpenedSweep, chosen_farm
from farm.sweep.file.store import Store, lock_of
from tests.sweep.samples import done, plan_of

PLAN = plan_of("random:4")


def test_a_sweep_that_is_closed_again_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    store = Store.create(path, PLAN)
    store.add(done(PLAN, 1))
    store.close("interrupted", {})
    opened = OpenedSweep(path)
    assert lock_of(path).exists()
    assert opened.store.known.status.tolist() == [0, 1, 0, 0]
    opened.close()
    assert not lock_of(path).exists()
    assert Store.resume(path).known.status.tolist() == [0, 1, 0, 0]


def test_the_farm_of_the_command_line_goes_before_that_of_the_file(tmp_path: Path) -> None:
    target = Target(to="http://node:1")
    assert chosen_farm(target, PLAN, tmp_path / "s.h5", trust=False) is target
