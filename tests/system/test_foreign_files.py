"""Whatever reads or continues a sweep file takes it for data, whoever wrote it.

`tests/storage/test_hdf5.py` has every attack on a dataset; here each reader meets one of a kind.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from farm.cli import main
from farm.record.exchange.joining import import_sweep
from farm.sweep.design.tables import read_table
from farm.sweep.errors import SweepError
from farm.sweep.file.claim import Claim
from farm.sweep.file.reading import (
    failures_of,
    known_of,
    load_xarray,
    progress_of,
    snapshot,
    write_csv,
)
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.file.tables import load_pandas
from farm.sweep.report.report import write_report
from farm.sweep.sensitivity.analysis import analyse
from tests.support.foreign import ATTACKS, SECRET, replaced
from tests.sweep.samples import done, failed, plan_of

PLAN = plan_of("random:8", gradients=())

READERS: dict[str, Callable[[Path], object]] = {
    "known": known_of,
    "status": progress_of,
    "failures": failures_of,
    "csv": lambda path: write_csv(path, io.StringIO()),
    "xarray": load_xarray,
    "pandas": load_pandas,
    "plot": lambda path: write_report(path, path.with_name("s.html")),
    "copy": lambda path: snapshot(path, path.with_name("copy.h5")),
    "sensitivity": lambda path: analyse(path),
    "record": lambda path: import_sweep(path, path.with_name("r.record"), "1", lambda n: None),
    "design": lambda path: read_table(str(path)),
    "claim": lambda path: Claim(path),
    "resume": lambda path: Store.resume(path).abandon(),
}
READ = {
    "theta": set(READERS),
    "status": set(READERS) - {"design", "copy"},
    "failures/error": {
        "known",
        "status",
        "failures",
        "pandas",
        "plot",
        "record",
        "claim",
        "resume",
    },
    "out_0": {"csv", "xarray", "pandas", "plot", "record", "resume"},
}
"""Which of them open a dataset of the file."""
KINDS = ("external storage", "virtual", "external link", "plugin", "2^40 points")
"""Attacks that are refused for different reasons."""


def sweep_at(path: Path, state: str = "stopped") -> None:
    store = Store.create(path, PLAN)
    for point in range(6):
        store.add(done(PLAN, point))
    store.add(failed(6))
    store.abandon() if state == "killed" else store.close(state, {})


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a sweep that has stopped, without its journal, as when it was sent."""
    path = tmp_path_factory.mktemp("sent") / "s.h5"
    sweep_at(path)
    return path.read_bytes()


@pytest.mark.parametrize("attack", KINDS)
@pytest.mark.parametrize("name", READ)
def test_no_reader_goes_where_the_file_leads(
    tmp_path: Path, sent: bytes, name: str, attack: str
) -> None:
    path = tmp_path / "s.h5"
    path.write_bytes(sent)
    reason = replaced(path, name, attack)
    before = path.read_bytes()
    for reader in sorted(READ[name]):
        with pytest.raises(SweepError, match=reason) as refused:
            READERS[reader](path)
        assert f"/{name} " in str(refused.value), reader
    assert (tmp_path / "secret").read_bytes() == SECRET
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["theta", "out_0", "status", "failures/error"])
def test_a_journal_is_not_replayed_into_another_file(tmp_path: Path, name: str) -> None:
    """Readers use the journal alone; the sweep is refused, and its file stays as it is."""
    path = tmp_path / "s.h5"
    sweep_at(path, "killed")
    replaced(path, name, "external storage")
    before = path.read_bytes()
    assert known_of(path)[1].status.tolist() == [1] * 6 + [2, 0]
    with pytest.raises(SweepError, match=f"/{name} is stored in another file"):
        Store.resume(path)
    assert (tmp_path / "secret").read_bytes() == SECRET
    assert path.read_bytes() == before
    assert not path.with_name("s.h5.broken").exists()


@pytest.mark.parametrize("place", ["s.h5", "s.h5.journal"])
@pytest.mark.parametrize("words", ["status", "plot", "export --csv t.csv", "failures", "--resume"])
def test_no_verb_waits_at_a_pipe(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(place)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *words.split(), "s.h5"])
    assert ended.value.code == 2
    assert f"{place} is not a regular file" in capsys.readouterr().err


def test_what_is_huge_in_a_small_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep_at(tmp_path / "s.h5", COMPLETE)
    (tmp_path / "s.h5.status.json").unlink(missing_ok=True)
    replaced(tmp_path / "s.h5", "status", "2^40 points")
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "status", "s.h5"])
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert "/status has the shape (1099511627776,)" in said


def test_other_programs_tables_are_designs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("runs/points", data=[[1.0, 2.0]] * 50, compression="lzf")
    assert read_table(f"{tmp_path}/t.h5:/runs/points").rows.shape == (50, 2)
    for attack in ATTACKS:
        with h5py.File(tmp_path / "t.h5", "w") as file:
            file["runs/points"] = [1.0] * 8
        reason = replaced(tmp_path / "t.h5", "runs/points", attack)
        with pytest.raises(SweepError, match=reason):
            read_table(f"{tmp_path}/t.h5:/runs/points")


@pytest.mark.parametrize("reader", ["csv", "xarray", "pandas", "plot", "record"])
def test_a_file_that_lacks_a_column_is_damaged_to_every_reader(
    tmp_path: Path, sent: bytes, reader: str
) -> None:
    (tmp_path / "s.h5").write_bytes(sent)
    with h5py.File(tmp_path / "s.h5", "r+") as file:
        del file["out_0"]
    with pytest.raises(SweepError, match="cannot be read: it is damaged or incomplete"):
        READERS[reader](tmp_path / "s.h5")
