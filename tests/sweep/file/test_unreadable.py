"""Each path that is not that of a sweep file gets one line: what it is, and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

import farm
from farm.sweep.file.recovery import journal_of
from farm.wording import on_command_line
from tests.sweep.samples import done, plan_of, stored

READERS: tuple[Callable[[str | Path], Any], ...] = (
    farm.load_xarray,
    farm.load_pandas,
    farm.load_failures,
    farm.load_progress,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plan = plan_of("random:2")
    stored(tmp_path / "beam.h5", plan, done(plan, 0), done(plan, 1), state="complete")
    content = (tmp_path / "beam.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    (tmp_path / "start.h5").write_bytes(content[:5])
    (tmp_path / "empty.h5").touch()
    (tmp_path / "points.csv").write_text("x,y\n1,2\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "link.h5").symlink_to("nowhere.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["pressure"] = [1.0]
    with h5py.File(tmp_path / "newer.h5", "w") as file:
        file.attrs["farm_layout"] = "sweep/99"
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (".", [". is a folder", "it has beam.h5, cut.h5", "expected a sweep file"]),
        ("", [". is a folder", "expected a sweep file"]),
        ("runs", ["runs is a folder", "no .h5 file", "expected a sweep file"]),
        ("baem.h5", ["baem.h5 does not exist", "did you mean beam.h5?"]),
        ("link.h5", ["link.h5 does not exist", "expected a sweep file"]),
        ("gone/a.h5", ["gone/a.h5 does not exist, nor does the folder gone"]),
        ("points.csv/a.h5", ["points.csv/a.h5 does not exist, nor does the folder points.csv"]),
        ("points.csv", ["not an HDF5 file, as it begins with b'x,y", "expected a sweep file"]),
        ("empty.h5", ["empty.h5 cannot be read: it is empty", "expected a sweep file"]),
        ("cut.h5", ["it is damaged or incomplete", "copy it again"]),
        ("start.h5", ["it is damaged or incomplete, with 5 bytes", "copy it again"]),
        ("other.h5", ["is not a sweep file of farm", "HDF5 file, with pressure", "h5py"]),
        ("newer.h5", ["layout sweep/2 but of sweep/99", "release of farm that wrote it"]),
        ("beam.h5.journal", ["is the journal of a sweep; name the sweep, beam.h5"]),
    ],
)
def test_every_reader_says_what_is_there(folder: Path, path: str, parts: list[str]) -> None:
    for reader in READERS:
        with pytest.raises(farm.SweepError) as caught:
            reader(path)
        text = str(caught.value)
        assert [part for part in parts if part not in text] == []
        assert "\n" not in text
        assert caught.value.__cause__ is None


def test_a_part_that_is_missing_is_named(folder: Path) -> None:
    with h5py.File("beam.h5", "r+") as file:
        del file["status"]
    for reader in (farm.load_pandas, farm.load_failures):
        with pytest.raises(farm.SweepError, match=r"damaged or incomplete.* has no 'status'"):
            reader("beam.h5")


def test_a_long_folder_is_not_listed_whole(folder: Path) -> None:
    for k in range(9):
        (folder / "runs" / f"{k}.h5").touch()
    with pytest.raises(farm.SweepError, match=r"it has 0.h5, 1.h5, 2.h5, 3.h5, 4.h5, 4 others;"):
        farm.load_xarray("runs")


def test_the_command_line_is_told_its_own_words(folder: Path) -> None:
    with on_command_line(), pytest.raises(farm.SweepError, match="which `farm sweep -o` writes"):
        farm.load_progress("runs")


def test_a_journal_alone_is_enough(folder: Path) -> None:
    plan = plan_of("random:2")
    stored(folder / "new.h5", plan, state="killed")
    (folder / "new.h5").unlink()
    assert journal_of(folder / "new.h5").exists()
    assert len(farm.load_pandas("new.h5")) == 2
