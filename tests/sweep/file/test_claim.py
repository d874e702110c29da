"""Claims: one process at a time, from before its model starts; sweeps are replaced at once."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import h5py
import pytest

from farm.storage import lock as lock_module
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file import claim as claim_module
from farm.sweep.file import layout, recovery, store
from farm.sweep.file.claim import Claim
from farm.sweep.file.progress import status_of
from farm.sweep.file.reading import known_of
from farm.sweep.file.recovery import journal_of, lock_of
from farm.sweep.file.store import COMPLETE, Store
from tests.support.coroutines import wait_until
from tests.sweep.samples import done, failed, plan_of, raising, stored

PLAN = plan_of()
OTHER = plan_of("random:5", seed=8)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"s\.h5: there is no folder .*/none; make it first"):
        Claim(tmp_path / "none" / "s.h5")


def left(path: Path, state: str, *points: int, plan: Plan = PLAN) -> None:
    """Leave a sweep with some finished points, in a state or as a killed process does."""
    stored(path, plan, *[done(plan, point) for point in points], state=state)


def test_nothing_is_there_yet(path: Path) -> None:
    with Claim(path) as claim:
        assert (claim.plan, claim.pending, claim.failed) == (None, 0, 0)
        assert claim.continued(overwrite=False) is None
        made = claim.create(PLAN)
    assert lock_of(path).exists(), "the store has the lock now"
    made.close("interrupted", {})
    assert not lock_of(path).exists()


def test_a_claim_is_of_one_process_and_leaves_nothing(path: Path) -> None:
    with (
        Claim(path),
        pytest.raises(SweepError, match=f"process {os.getpid()} .*writing this sweep"),
    ):
        Claim(path)
    Claim(path).release()
    with Claim(path):
        assert lock_of(path).exists()
    assert os.listdir(path.parent) == []


def test_a_sweep_that_is_there_continues(path: Path) -> None:
    left(path, "killed", 3, 4)
    with Claim(path) as claim:
        there = claim.continued(overwrite=False)
        assert there is not None
        assert (there.run_id, there.theta_hash) == (PLAN.run_id, PLAN.theta_hash)
        assert (claim.pending, claim.failed) == (18, 0)
        resumed = claim.resume()
    resumed.add(failed(5))
    resumed.close("interrupted", {})
    with Claim(path) as claim:
        assert (claim.pending, claim.failed) == (17, 1)


def test_what_is_not_a_sweep_is_neither_continued_nor_replaced(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SweepError, match=r"s\.h5 exists, and no sweep can be read from it"):
        Claim(path)
    assert path.read_text() == "precious"
    path.unlink()
    with h5py.File(path, "w") as file:
        file["precious"] = 1
    with pytest.raises(SweepError, match="is not a sweep file"):
        Claim(path)
    assert not lock_of(path).exists()


def test_the_lock_is_kept_while_a_model_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lock_module, claim_module):
        monkeypatch.setattr(module, "BEAT_S", 0.01)
    with Claim(path) as claim:
        first = lock_of(path).read_text()
        wait_until(lambda: lock_of(path).read_text() != first)
        claim.create(PLAN).close("interrupted", {})


@pytest.mark.parametrize("use", ["create", "resume"])
def test_a_claim_that_another_process_took_over_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    monkeypatch.setattr(lock_module, "BEAT_S", math.inf)  # no beat is halfway
    if use == "resume":
        left(path, "interrupted")
    with Claim(path) as claim:
        there = path.read_bytes() if path.exists() else b""
        taken = json.loads(lock_of(path).read_text()) | {"token": "other", "pid": 4711}
        lock_of(path).write_text(json.dumps(taken))
        with pytest.raises(SweepError, match="process 4711"):
            claim.create(PLAN) if use == "create" else claim.resume()
    assert (path.read_bytes() if path.exists() else b"") == there
    assert json.loads(lock_of(path).read_text())["token"] == "other"


def test_tidy_finishes_a_sweep_that_was_killed_at_its_end(path: Path) -> None:
    left(path, COMPLETE, *range(20))
    before = path.stat().st_mtime_ns
    with Claim(path) as claim:
        claim.tidy()
    assert path.stat().st_mtime_ns == before, "a complete file is not written again"
    path.unlink()
    left(path, "killed", *range(20))
    with Claim(path) as claim:
        claim.tidy()
    assert not journal_of(path).exists()
    with h5py.File(path) as file:
        assert file.attrs["state"] == COMPLETE


@pytest.mark.parametrize("end", ["interrupted", "killed", "complete", "journal alone"])
def test_overwriting_replaces_a_sweep_in_any_state(path: Path, end: str) -> None:
    left(path, "interrupted" if end == "journal alone" else end, *range(20))
    if end == "journal alone":
        path.unlink()
    status_of(path).write_text("{}")
    with Claim(path) as claim:
        assert claim.continued(overwrite=True) is None
        made = claim.create(OTHER)
    assert not status_of(path).exists(), "it is of the old sweep"
    made.add(done(OTHER, 2))
    made.close("interrupted", {})
    plan, known = known_of(path)
    assert (plan.run_id, known.status.tolist()) == (OTHER.run_id, [0, 0, 1, 0, 0])
    with h5py.File(path) as file:
        assert file.attrs["run_id"] == OTHER.run_id
        assert file["provenance"].attrs["replaces"] == PLAN.run_id
    resumed = Store.resume(path)
    assert resumed.plan.run_id == OTHER.run_id
    resumed.close("interrupted", {})


def test_a_new_file_that_cannot_be_made_leaves_the_old_sweep(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(path, "interrupted", 1, 2)
    there = {p.name: p.read_bytes() for p in path.parent.iterdir()}

    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(layout, "create", raising(full))
    with Claim(path) as claim, pytest.raises(SweepError, match="No space left"):
        claim.create(OTHER)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == there


@pytest.mark.parametrize("old", ["interrupted", "killed", "complete"])
@pytest.mark.parametrize("moment", ["before the journal", "after the journal", "after the file"])
def test_a_kill_while_a_sweep_is_replaced_leaves_the_old_or_the_new(
    path: Path, monkeypatch: pytest.MonkeyPatch, old: str, moment: str
) -> None:
    """Copies of the folder at every step are what a kill there leaves."""
    left(path, old, *range(20))

    # Nothing handles it but clean-up, which `unlink` below prevents.
    killed = raising(KeyboardInterrupt())
    monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: None)
    if moment == "before the journal":
        monkeypatch.setattr(recovery, "start_journal", killed)
    elif moment == "after the journal":
        monkeypatch.setattr("farm.storage.files.os.replace", only_journals)
    else:
        monkeypatch.setattr(store, "open_file", killed)
    with Claim(path) as claim, pytest.raises(KeyboardInterrupt):
        claim.create(OTHER)
    monkeypatch.undo()
    lock_of(path).unlink()
    expected = PLAN if moment == "before the journal" else OTHER
    with Claim(path) as claim:
        there = claim.continued(overwrite=False)
        assert there is not None
        assert there.run_id == expected.run_id
        resumed = claim.resume()
    assert (resumed.plan.run_id, len(resumed.known.status)) == (expected.run_id, expected.size)
    resumed.close("interrupted", {})
    with h5py.File(path) as file:
        assert (file.attrs["run_id"], len(file["theta"])) == (expected.run_id, expected.size)


def only_journals(old: Path, new: Path) -> None:
    """Stand for a process that is killed before the sweep file, the second file, is replaced."""
    if not str(new).endswith(".journal"):
        raise KeyboardInterrupt
    Path(old).rename(new)


def test_a_link_stays_a_link(path: Path) -> None:
    left(path.with_name("real.h5"), COMPLETE, *range(20))
    path.symlink_to("real.h5")
    with Claim(path) as claim:
        claim.create(OTHER).close("interrupted", {})
    assert path.is_symlink()
    assert known_of(path)[0].run_id == OTHER.run_id


def test_a_restarted_job_does_not_overwrite_what_it_began(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(path, "interrupted", 1, plan=plan_of(provenance={"job": "7 on c"}))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    with Claim(path) as claim:
        assert claim.continued(overwrite=True) is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with Claim(path) as claim:
        assert claim.continued(overwrite=True) is claim.plan is not None
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with Claim(path) as claim:
        assert claim.continued(overwrite=True) is None
