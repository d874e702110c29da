"""Recovery: with damaged, missing or torn files, the journal's outcomes are restored."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.call import Array
from farm.storage import frames
from farm.storage.journal import Journal
from farm.sweep.design.plan import Column
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.file import recovery as recover_module
from farm.sweep.file.claim import Claim
from farm.sweep.file.journal import (
    FORMAT,
    NO_WORKER,
    AnsweringWorker,
    Content,
    PointStatus,
    Row,
    add_to,
    read_journal,
)
from farm.sweep.file.point_columns import read
from farm.sweep.file.recovery import (
    intact,
    journal_of,
    make_file,
    merged,
    rebuild,
    recover,
    verify,
)
from farm.sweep.file.store import COMPLETE, Store
from tests.sweep.samples import done, failed, plan_of, raising, stored, values_of

PLAN = plan_of("random:30")
POINTS = [3, 1, 4, 15, 9, 26, 5]


def killed(path: Path) -> None:
    """Write the files of a writer that was killed after POINTS, the last of which failed."""
    store = Store.create(path, PLAN)
    worker = store.worker_id("node/1")
    for point in POINTS[:-1]:
        store.add(done(PLAN, point, worker=worker))
    store.add(failed(POINTS[-1]))
    store.commit()
    store.abandon()


def check(path: Path, *, without: tuple[int, ...] = ()) -> None:
    """Resume, and check that exactly the points of `killed` are there, with their values."""
    store = Store.resume(path)
    assert set(np.flatnonzero(store.known.status).tolist()) == set(POINTS) - set(without)
    store.close("interrupted", {})
    with h5py.File(path) as file:
        assert np.array_equal(file["status"][:], store.known.status)
        for point in sorted(set(POINTS[:-1]) - set(without)):
            assert file["out_0"][point].tolist() == values_of(PLAN, point)[:4].tolist()
        assert np.array_equal(file["theta"][:], PLAN.theta)
    verify(path)


def append(path: Path, *contents: Content) -> None:
    """Write more into the journal, as a writer does whose file has not got it yet."""
    last = read(journal_of(path))
    journal = Journal(journal_of(path), FORMAT, sequence=last.sequence, size=last.end)
    for content in contents:
        add_to(journal, content)
    journal.close()


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite_with_rubbish(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(5000))


def zero_the_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\0" * 512)


def lose_pages(path: Path) -> None:
    """Simulate a power cut after which some pages of the file never reached the disk."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(2, size // 4096, 3):
            file.seek(page * 4096)
            file.write(b"\0" * 4096)


@pytest.fixture
def path(path: Path) -> Path:
    killed(path)
    return path


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, cut_in_half, overwrite_with_rubbish, zero_the_head, lose_pages],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_file_is_rebuilt(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(path)
    check(path)
    if damage in (overwrite_with_rubbish, zero_the_head):
        assert path.with_name("s.h5.broken").exists()
        assert "moved to s.h5.broken and rebuilt" in caplog.text


def test_wrong_numbers_in_the_file_do_not_stay(path: Path) -> None:
    """Simulates a power cut that kept the status but not the values, or the reverse."""
    with h5py.File(path, "r+") as file:
        file["out_0"][4] = 1e9
        file["status"][20] = PointStatus.DONE
        file["status"][15] = PointStatus.PENDING
        file["theta"][15:] = 0.0
        file["failures/point"].resize(0, axis=0)
        file.attrs["machine"] = "this machine, before it was started again"
    check(path)


@pytest.mark.slow
@given(cut=st.floats(0, 1))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_torn_journal_keeps_its_whole_records(
    tmp_path_factory: pytest.TempPathFactory, cut: float
) -> None:
    path = tmp_path_factory.mktemp("recover") / "s.h5"
    killed(path)
    of_another_boot(path)
    journal = journal_of(path)
    records = list(read_journal(journal))
    size = int(records[0].end + cut * (records[-1].end - records[0].end))
    os.truncate(journal, size)
    # Workers have records too; outcomes follow in the order of POINTS.
    whole = sum(record.end <= size for record in records[2:])
    check(path, without=tuple(POINTS[whole:]))


def of_another_boot(path: Path) -> None:
    """Make the file appear to be from a machine that has rebooted since."""
    with h5py.File(path, "r+") as file:
        file.attrs["machine"] = "another boot"


def flip_bits(journal: Path, *places: int) -> None:
    data = bytearray(journal.read_bytes())
    for place in places:
        data[place] ^= 1
    journal.write_bytes(data)


def flip_a_bit(journal: Path, record: int) -> None:
    """Damage the body of one record."""
    ends = [found.end for found in read_journal(journal)]
    flip_bits(journal, (ends[record - 1] + ends[record]) // 2)


@pytest.mark.parametrize("record", [1, 3, 7])
def test_a_flipped_bit_in_the_journal_costs_nothing_while_the_machine_lives(
    path: Path, record: int, caplog: pytest.LogCaptureFixture
) -> None:
    journal = journal_of(path)
    flip_a_bit(journal, record)
    damaged = journal.read_bytes()
    check(path)
    assert "is damaged from byte" in caplog.text
    assert "kept as s.h5.journal.broken" in caplog.text
    assert "and the file's content are used" in caplog.text
    assert journal.with_name("s.h5.journal.broken").read_bytes() == damaged


@pytest.mark.parametrize("record", [2, 5, 7])
def test_a_flipped_bit_costs_one_record_where_the_file_may_be_torn(path: Path, record: int) -> None:
    flip_a_bit(journal_of(path), record)
    of_another_boot(path)
    check(path, without=(POINTS[record - 2],))
    assert journal_of(path).with_name("s.h5.journal.broken").exists()


def test_several_damages_and_one_in_a_length_cost_their_records_only(path: Path) -> None:
    journal = journal_of(path)
    ends = [found.end for found in read_journal(journal)]
    flip_bits(journal, ends[2] + 1, ends[5] + 5)  # the length of a record, a checksum
    of_another_boot(path)
    check(path, without=(POINTS[1], POINTS[4]))


def test_a_damaged_plan_is_taken_from_the_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip_bits(journal_of(path), 60)
    of_another_boot(path)
    check(path)
    assert "is damaged at its beginning" in caplog.text


@pytest.mark.parametrize("closed", [False, True])
def test_a_cut_journal_costs_nothing_if_the_file_has_all_that_was_written(
    path: Path, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    """It has where it was closed, and while the machine lives."""
    if closed:
        Store.resume(path).close("interrupted", {})
        of_another_boot(path)
    records = list(read_journal(journal_of(path)))
    os.truncate(journal_of(path), records[3].end)
    check(path)
    assert f"lacks the last {len(records) - 4} records that the file has" in caplog.text


def test_a_file_of_another_sweep_is_not_believed_for_a_damaged_journal(
    path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.h5"
    killed(other)
    with h5py.File(other, "r+") as file:
        plan = json.loads(file["provenance"].attrs["plan"]) | {"run_id": "another"}
        file["provenance"].attrs["plan"] = json.dumps(plan)
        file.attrs["run_id"] = "another"
    shutil.copy(other, path)
    flip_a_bit(journal_of(path), 3)
    with pytest.raises(SweepError, match="holds sweep another, its journal"):
        Store.resume(path)
    records = list(read_journal(journal_of(path)))
    assert {r.content.point for r in records if isinstance(r.content, Row)} == (
        {*POINTS} - {POINTS[1]}
    )


def test_a_full_disk_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/storage/test_files.py has the errors of a full disk."""
    before = path.read_bytes()
    for error, said in (
        (OSError(errno.ENOSPC, "Can't write data"), "make room and resume"),
        (RuntimeError("Can't flush (error message = 'No space left on device')"), "make room"),
        (OSError(errno.EIO, "Input/output error"), "cannot be opened"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be opened"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(recover_module, "_replay", raising(error))
            with pytest.raises(SweepError, match=said):
                Store.resume(path)
    assert path.read_bytes() == before
    assert not path.with_name("s.h5.broken").exists()
    check(path)


def test_without_a_journal_the_file_is_believed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal_of(path).unlink()
    check(path)
    assert "its journal is gone" in caplog.text
    with h5py.File(path) as file:
        assert file["failures/error"][:].tolist() == [b"lost with the journal"]
        assert np.all(file["worker"][:] == NO_WORKER)


def test_neither_file_nor_plan_is_told(path: Path) -> None:
    os.truncate(journal_of(path), 40)
    path.unlink()
    with pytest.raises(SweepError, match="no plan"):
        Store.resume(path)
    assert not path.with_name("s.h5.lock").exists()


def test_neither_sound_file_nor_journal_is_told(path: Path) -> None:
    zero_the_head(path)
    journal_of(path).unlink()
    with pytest.raises(SweepError, match="has no journal to rebuild it from"):
        Store.resume(path)


def test_a_journal_of_another_sweep_is_told(path: Path) -> None:
    other = path.with_name("other.h5")
    stored(other, plan_of("random:30"))
    shutil.copy(journal_of(other), journal_of(path))
    with pytest.raises(SweepError, match="holds sweep"):
        Store.resume(path)


def test_a_file_that_somebody_reads_is_not_called_broken(path: Path) -> None:
    with h5py.File(path), pytest.raises(SweepError, match="open in another program"):
        Store.resume(path)
    check(path)


def test_a_file_that_grew_in_the_journal_only_grows(path: Path) -> None:
    plan = plan_of("random:40")
    object.__setattr__(plan, "run_id", PLAN.run_id)
    append(path, plan, done(plan, 35))
    store = Store.resume(path)
    assert store.plan.size == 40
    store.close("interrupted", {})
    with h5py.File(path) as file:
        assert file["status"].shape == (40,)
        assert file["out_0"][35].tolist() == values_of(plan, 35)[:4].tolist()


def test_rebuilding_needs_nothing_but_the_journal(path: Path) -> None:
    target = path.with_name("copy.h5")
    rebuild(journal_of(path), target)
    with h5py.File(path) as file, h5py.File(target) as copy:
        for name in ("theta", "unit", "out_0", "out_1", "status", "t_start", "worker", "sequence"):
            assert np.array_equal(file[name][()], copy[name][()], equal_nan=True), name
        assert copy["failures/error"][:].tolist() == [b"ModelFailed: boom"]
        assert copy["workers/name"][:].tolist() == [b"node/1"]
        assert copy.attrs["state"] == "snapshot"


def test_rebuilding_while_the_journal_grows_takes_one_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = read(journal_of(path))
    append(path, done(PLAN, 29))
    monkeypatch.setattr(recover_module, "read", lambda journal: moment)
    rebuild(journal_of(path), path.with_name("copy.h5"))
    with h5py.File(path.with_name("copy.h5")) as copy:
        assert copy["status"][29] == PointStatus.PENDING
        assert np.all(np.isnan(copy["out_0"][29]))


def test_a_new_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "j", [PLAN])
    monkeypatch.setattr("farm.storage.files.sync", raising(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        make_file(tmp_path / "s.h5", PLAN)
    with pytest.raises(OSError, match="power cut"):
        rebuild(tmp_path / "j", tmp_path / "s.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


def test_verification_finds_each_difference(path: Path) -> None:
    Store.resume(path).close("interrupted", {})
    verify(path)
    for name, point, value in (
        ("theta", 4, 0.0),
        ("out_0", 4, 0.0),
        ("out_1", 26, np.nan),
        ("status", 0, 1),
    ):
        with h5py.File(path, "r+") as file:
            before = file[name][point]
            file[name][point] = value
        with pytest.raises(SweepError, match="differs from its journal"):
            verify(path)
        with h5py.File(path, "r+") as file:
            file[name][point] = before
    verify(path)
    zero_the_head(path)
    with pytest.raises(SweepError, match="cannot be read back"):
        verify(path)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["of the points", "mixed"])
def test_many_points_are_replayed_to_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(recover_module, "REPLAY_ROWS", 50)
    monkeypatch.setattr(recover_module, "WORTH_READING", 4)
    plan, path = plan_of("random:1000"), tmp_path / "many.h5"
    points = np.arange(1000) if order != "mixed" else np.random.default_rng(0).permutation(1000)
    rows = [failed(p) if p % 9 == 4 else done(plan, p) for p in points.tolist()]
    stored(path, plan, *rows, state="killed")
    path.unlink()
    Store.resume(path).close(COMPLETE, {})
    with h5py.File(path) as file:
        for point in range(1000):
            if point % 9 != 4:
                assert file["out_0"][point].tolist() == values_of(plan, point)[:4].tolist()
        expected = [2 if point % 9 == 4 else 1 for point in range(1000)]
        assert file["status"][:].tolist() == expected


def test_beats_while_it_replays(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["sequence"][()] = 0
    beats: list[int] = []
    _, _, journal = recover(path, lambda: beats.append(1))
    journal.close()
    assert beats


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The journals that were read, each time it is read from its beginning."""
    found: list[Path] = []
    read_runs = frames.read_runs

    def spy(path: Path, format: frames.Format) -> Iterator[frames.FrameRun]:
        found.append(path)
        return read_runs(path, format)

    monkeypatch.setattr(frames, "read_runs", spy)
    return found


@pytest.mark.parametrize("by", ["resume", "claim"])
def test_the_journal_is_read_once(path: Path, readings: list[Path], by: str) -> None:
    """After a kill, to continue; and once more at the end, to compare the file with it."""
    store = Store.resume(path) if by == "resume" else Claim(path).resume()
    assert readings == [journal_of(path)]
    for point in sorted(set(range(30)) - set(POINTS)):
        store.add(done(PLAN, point))
    store.close(COMPLETE, {})
    assert readings == [journal_of(path)] * 2


@pytest.mark.parametrize("machine", ["this", "another"])
def test_only_what_the_file_lacks_is_replayed(
    path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    """All is after the death of a machine, which may have kept any part of what was written."""
    store = Store.resume(path)
    later = [20, 7]
    for point in later:
        store.add(done(PLAN, point))
    store.abandon()  # the journal has them, the file has not
    if machine == "another":
        of_another_boot(path)
    written: list[int] = []
    write_points = layout.write_points

    def spy(file: h5py.File, columns: Sequence[Column], points: Array, values: Array) -> None:
        written.extend(points.tolist())
        write_points(file, columns, points, values)

    monkeypatch.setattr(layout, "write_points", spy)
    Store.resume(path).abandon()
    assert written == (sorted(later) if machine == "this" else list(range(30)))
    with h5py.File(path) as file:
        for point in (*POINTS[:-1], *later):
            assert file["out_0"][point].tolist() == values_of(PLAN, point)[:4].tolist()
        assert file["status"][sorted(later)].tolist() == [1, 1]


def test_what_differs_at_the_end_is_written_again(path: Path) -> None:
    """A change by somebody else is found at the end; the next start writes all records again."""
    with h5py.File(path, "r+") as file:
        file["out_0"][4] = 1e9
    store = Store.resume(path)
    for point in sorted(set(range(30)) - set(POINTS)):
        store.add(done(PLAN, point))
    with pytest.raises(SweepError, match="differs from its journal; repair it"):
        store.close(COMPLETE, {})
    Store.resume(path).leave()
    assert not journal_of(path).exists()
    with h5py.File(path) as file:
        assert file["out_0"][4].tolist() == values_of(PLAN, 4)[:4].tolist()


def test_an_outcome_of_another_plan_is_refused(path: Path) -> None:
    """Otherwise the values would be those of the next record."""
    append(path, done(PLAN, 2, values=values_of(PLAN, 2)[:-1]))
    with pytest.raises(SweepError, match=r"s\.h5\.journal: record \d+ is not of"):
        read(journal_of(path))


def test_failures_before_a_success_are_kept_without_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    late = failed(3, status=PointStatus.TIMEOUT)
    stored(path, PLAN, failed(2), late, done(PLAN, 2, attempt=2), state=COMPLETE)
    store = Store.resume(path)
    assert [row.point for row in store.known.failures] == [2, 3]
    assert store.known.status[[2, 3]].tolist() == [PointStatus.DONE, PointStatus.TIMEOUT]
    store.abandon()


SHORT, LONGER = plan_of("random:10"), plan_of("random:20")
W0, W1 = AnsweringWorker(0, "a/1", 1.0), AnsweringWorker(1, "b/2", 2.0)


def write(path: Path, contents: list[Content]) -> list[int]:
    journal = Journal(path, FORMAT)
    ends = []
    for content in contents:
        add_to(journal, content)
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def points(contents: list[Content]) -> list[tuple[int, int]]:
    return [(row.point, row.worker) for row in contents if isinstance(row, Row)]


def test_nothing_is_left_of_no_journal(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path in (tmp_path / "none", tmp_path / "empty"):
        assert list(intact(path)) == []


def test_records_behind_a_damage_are_left(tmp_path: Path) -> None:
    path = tmp_path / "j"
    ends = write(path, [SHORT, W0, done(SHORT, 1), done(SHORT, 2), LONGER, done(LONGER, 15)])
    flip_bits(path, ends[2] - 1)
    records = list(intact(path))
    assert records[-1].sequence == 6
    assert [point for point, _ in points([record.content for record in records])] == [2, 15]


def test_the_later_source_counts_and_workers_come_once() -> None:
    first, second = done(LONGER, 1, worker=0), done(LONGER, 2, worker=1)
    found = list(merged(LONGER, [SHORT, W0, W1, first], [LONGER, W0, W1, second, first]))
    assert found[:4] == [LONGER, W0, W1, first]
    assert points(found) == [(1, 0), (2, 1), (1, 0)]
    found = list(merged(SHORT, [W0, done(LONGER, 15), done(LONGER, 3, worker=1)]))
    assert points(found) == [(3, NO_WORKER)]
