"""The record file: nothing confirmed is lost, nothing wrong is returned, damage is reported."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import Unavailable
from farm.record import file as module
from farm.record.entry import FORMAT, Status, encoded
from farm.record.file import RecordFile, entries_in
from farm.storage.frames import Damage
from tests.record.entries import entry, flip_bit, key, lock, point, record, written
from tests.support.coroutines import LIMIT_S

WRITER = """
import sys
from pathlib import Path
from farm.record.file import RecordFile
from tests.record.entries import record

file = RecordFile(Path(sys.argv[1]), indexed=False)
for k in range(10**9):
    file.add([record(3 * k), record(3 * k + 1), record(3 * k + 2)])
    print(3 * k + 2, flush=True)
"""

FILLER = """
import resource, signal, sys
from pathlib import Path
from farm.record.file import RecordFile
from tests.record.entries import key, record

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = RecordFile(Path(sys.argv[1]), indexed=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
for k in range(100):
    file.add([record(k)])
last = max(k for k in range(100) if file.find(key(k)) is not None)
assert all(file.find(key(k)) is not None for k in range(last + 1))
file.close()
print(last, [file.new_trouble() for _ in range(2)].index(""), file.trouble)
"""


def found(file: RecordFile, count: int) -> list[int]:
    """Return which points the file has; each must have its own output."""
    there = []
    for k in range(count):
        known = file.find(key(k))
        if known is not None:
            assert known.outputs[0].tolist() == [k]
            there.append(k)
    return there


def ran(program: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_it_is_its_owners_alone(path: Path) -> None:
    written(path, *map(point, range(1)), info=None)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not lock(path).exists()


def test_evaluations_are_found_at_once_and_after_opening_it_again(path: Path) -> None:
    with closing(RecordFile(path, indexed=True)) as file:
        file.add([record(0), record(1)])
        file.add([record(2)])
        assert found(file, 4) == [0, 1, 2]
    with closing(RecordFile(path, indexed=True)) as file:
        assert found(file, 4) == [0, 1, 2]
        file.add([record(3)])
        assert found(file, 4) == [0, 1, 2, 3]
        assert file.status()["points"] == 4


def test_a_long_evaluation_is_read_whole(path: Path) -> None:
    long = entry(np.array([1.0, 2.0]), np.arange(10_000.0))
    with closing(RecordFile(path, indexed=True)) as file:
        file.add([record(0), encoded(long), record(1)])
        known = file.find(long.key)
        assert known is not None
        assert known.outputs[0].tolist() == list(range(10_000))


def test_what_is_not_finite_is_kept_and_not_found(path: Path) -> None:
    bad = entry(np.array([1.0, 2.0]), np.array([np.nan]))
    with closing(RecordFile(path, indexed=True)) as file:
        file.add([encoded(bad)])
        assert file.find(bad.key) is None
        assert file.status()["not_finite"] == 1
    with closing(RecordFile(path, indexed=True)) as file:
        assert file.find(bad.key) is None
        assert file.counts[Status.NOT_FINITE] == 1


def test_a_second_writer_is_refused(path: Path) -> None:
    with (
        closing(RecordFile(path, indexed=False)),
        pytest.raises(Unavailable, match=f"in use.*held by process {os.getpid()}.*merge"),
    ):
        RecordFile(path, indexed=False)
    RecordFile(path, indexed=False).close()


def test_another_file_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"\x89HDF\r\n\x1a\n" * 100)
    path.chmod(0o600)
    with pytest.raises(Unavailable, match=r"a\.record is not a record of farm"):
        RecordFile(path, indexed=False)
    assert path.read_bytes() == b"\x89HDF\r\n\x1a\n" * 100
    path.write_bytes(b"farm record 2\n")
    with pytest.raises(Unavailable, match=r"has version 2 .* reads version 1; use the release"):
        RecordFile(path, indexed=False)
    assert not lock(path).exists()


def test_a_file_that_others_may_write_is_refused(path: Path) -> None:
    written(path, *map(point, range(1)), info=None)
    path.chmod(0o620)
    with pytest.raises(Unavailable, match=r"others may write .* chmod 600"):
        RecordFile(path, indexed=True)
    path.chmod(0o640)
    RecordFile(path, indexed=True).close()


def test_a_folder_pipe_or_device_is_refused_and_stays(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)
    for other in (tmp_path, path):
        with pytest.raises(Unavailable, match="is not a regular file"):
            RecordFile(other, indexed=True)
    assert path.is_fifo()


def test_a_symbolic_link_is_the_file_it_names(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    with closing(RecordFile(link, indexed=False)) as file:
        file.add([record(1)])
        assert path.is_file()
        assert link.is_symlink()
        with pytest.raises(Unavailable, match="is in use"):
            RecordFile(path, indexed=True)
    with closing(RecordFile(path, indexed=True)) as file:
        assert file.find(key(1)) is not None


@pytest.mark.slow
def test_every_prefix_of_the_last_records_gives_the_whole_records_before(path: Path) -> None:
    written(path, *map(point, range(3)), info=None)
    kept = path.stat().st_size
    with closing(RecordFile(path, indexed=False)) as file:
        file.add([record(3), record(4)])
    whole = path.read_bytes()
    (length,) = {(len(whole) - kept) // 2}
    for size in range(kept, len(whole) + 1):
        path.write_bytes(whole[:size])
        with closing(RecordFile(path, indexed=True)) as file:
            expected = [0, 1, 2] + [3] * (size >= kept + length) + [4] * (size == len(whole))
            assert found(file, 5) == expected
            assert file.damage == []
            file.add([record(9)])
            assert found(file, 10) == [*expected, 9]


@pytest.mark.parametrize("at", range(14, 14 + 3 * 40, 7))
def test_a_damaged_byte_costs_one_record_and_is_reported(path: Path, at: int) -> None:
    written(path, *map(point, range(40)), info=None)
    length = (path.stat().st_size - 14) // 40
    flip_bit(path, at + length)
    lost = (at + length - 14) // length
    with closing(RecordFile(path, indexed=True)) as file:
        assert file.damage == [Damage(14 + lost * length, 14 + (lost + 1) * length)]
        assert found(file, 40) == [k for k in range(40) if k != lost]
        file.add([record(lost)])
        assert found(file, 40) == list(range(40))


def test_damage_while_the_file_is_open_gives_no_answer(path: Path) -> None:
    with closing(RecordFile(path, indexed=True)) as file:
        file.add([record(k) for k in range(3)])
        with path.open("r+b") as raw:
            raw.seek(-1, os.SEEK_END)
            raw.write(b"\xaa")
        assert found(file, 3) == [0, 1]
        assert found(file, 3) == [0, 1]


def test_a_key_that_shares_its_first_bytes_with_another_is_not_found(path: Path) -> None:
    with closing(RecordFile(path, indexed=True)) as file:
        file.add([record(0)])
        assert file.find(key(0)[:8] + bytes(8)) is None
        assert file.find(key(0)) is not None


def test_a_killed_writer_loses_nothing_that_it_had_confirmed(path: Path) -> None:
    for _ in range(2):
        process = ran(WRITER, path)
        assert process.stdout is not None
        confirmed = [process.stdout.readline() for _ in range(50)][-1]
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        last = int((confirmed + rest).split("\n")[-2])
        with closing(
            RecordFile(path, indexed=True)
        ) as file:  # the lock of a dead process is no obstacle
            assert found(file, last + 1) == list(range(last + 1))
            assert file.damage == []


def test_a_full_disk_ends_the_recording_with_whole_records(path: Path) -> None:
    process = ran(FILLER, path)
    output, _ = process.communicate(timeout=LIMIT_S)
    last, reasons, *trouble = output.split()
    assert (int(reasons), process.returncode) == (1, 0)
    assert trouble == ["File", "too", "large"]
    with closing(RecordFile(path, indexed=True)) as file:
        assert found(file, 100) == list(range(int(last) + 1))
        assert file.damage == []


def test_a_lost_lock_ends_the_recording(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    monkeypatch.setattr("farm.storage.lock.BEAT_S", math.inf)  # no beat is halfway
    with closing(RecordFile(path, indexed=True)) as file:
        assert file.new_trouble() == ""
        file.add([record(0)])
        lock(path).write_text('{"token": "another", "pid": 1, "host": "elsewhere"}')
        monkeypatch.setattr("farm.storage.lock.BEAT_S", 0.0)
        file._keeper.join(LIMIT_S)
        assert "is now held by process 1 on elsewhere" in file.new_trouble()
        assert file.new_trouble() == ""
        file.add([record(1)])
        assert found(file, 2) == [0]
    assert lock(path).exists()


def test_all_records_are_read_in_order_with_their_places(path: Path) -> None:
    written(path, *map(point, range(5)), info=None)
    damage: list[Damage] = []
    entries, _, ends = zip(*entries_in(path, damage.append), strict=True)
    assert [one.inputs[0][0] for one in entries] == [0, 1, 2, 3, 4]
    assert ends[-1] == path.stat().st_size
    assert damage == []


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 20)),
        st.tuples(st.just("kill"), st.integers(0, 2000)),
        st.tuples(st.just("damage"), st.integers(0, 5000)),
    ),
    max_size=12,
)


@pytest.mark.slow
@given(actions)
def test_no_history_of_writes_kills_and_damage_gives_a_wrong_answer(
    actions: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.record"
        with closing(RecordFile(path, indexed=True)) as file:
            added: set[int] = set()
            intact = True
            for what, number in actions:
                if what == "add":
                    file.add([record(number), record(number + 100)])
                    added |= {number, number + 100}
                    assert not intact or set(found(file, 200)) == added
                    continue
                file.close()
                data = bytearray(path.read_bytes())
                if what == "kill":  # the rest of a write that had not been confirmed
                    with path.open("ab") as raw:
                        raw.write(bytes(data[14:])[: number % 100])
                else:
                    at = 14 + number % max(1, len(data) - 14)
                    if at < len(data):
                        data[at] ^= 0xFF
                        intact = False
                    path.write_bytes(data)
                file = RecordFile(path, indexed=True)
                there = set(found(file, 200))
                assert there <= added
                assert not intact or there == added


def test_the_format_is_the_documented_one(path: Path) -> None:
    written(path, *map(point, range(1)), info=None)
    assert path.read_bytes().startswith(b"farm record 1\n")
    assert FORMAT.kinds == b"EM"
    assert point(3.0).status is Status.FINITE


def test_a_later_failure_does_not_hide_an_earlier_answer(path: Path) -> None:
    x = np.array([1.0, 2.0])
    with closing(RecordFile(path, indexed=True)) as file:
        file.add([encoded(entry(x, np.array([7.0]))), encoded(entry(x, np.array([np.nan])))])
        for _ in range(2):
            known = file.find(entry(x, x).key)
            assert known is not None
            assert known.outputs[0].tolist() == [7.0]
            file.close()
            file = RecordFile(path, indexed=True)
