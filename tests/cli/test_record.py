"""`farm record`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from farm.record.entry import encoded
from farm.record.file import RecordFile
from tests.record.entries import key, point, record
from tests.support.dispatcher_farm import run_here


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.record"
    file = RecordFile(path, indexed=False)
    file.add([record(k) for k in range(3)])
    file.close()
    return path


def said(path: Path, *arguments: str, status: int = 0) -> str:
    """Run a command beside the record: its output, or its one line of error."""
    code, out, error = run_here("record", *arguments, cwd=path.parent)
    assert code == status, error
    if status:
        assert error.count("\n") == 1 or "Usage" in error
    return out if status == 0 else error


def test_status_shows_counts_and_damage(path: Path) -> None:
    shown = said(path, "status", "a.record")
    assert "a.record: 3 evaluations" in shown
    assert "square" in shown
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    code, out, error = run_here("record", "status", "a.record", "--json", cwd=path.parent)
    found = json.loads(out)
    assert (code, found["damaged"][0][0], found["evaluations"][0]["points"]) == (0, 14, 2)
    _, _, error = run_here("record", "status", "a.record", cwd=path.parent)
    assert "damaged from byte 14" in error
    assert "farm record merge a.record -o REPAIRED" in error


@pytest.mark.slow
def test_export_writes_a_sweep(path: Path) -> None:
    assert "out.h5: 3 points of square" in said(path, "export", "a.record", "-o", "out.h5")
    code, out, _ = run_here("sweep", "status", "out.h5", cwd=path.parent)
    assert (code, "3 points: 3 done" in out) == (0, True)
    assert "exists; name another" in said(path, "export", "a.record", "-o", "out.h5", status=2)
    error = said(path, "export", "a.record", "-o", "b.h5", "--model", "cube", status=2)
    assert "holds no such evaluation" in error


@pytest.mark.slow
def test_names_cannot_change_a_terminal_or_a_command_to_copy(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m;b.record"
    file = RecordFile(path, indexed=False)
    for k in range(3):
        file.add([encoded(replace(point(k), model="evil\x1b[2J\nred"))])
    file.close()
    shown = said(path, "export", path.name, "-o", "out.h5")
    assert shown == "out.h5: 3 points of evil\\x1b[2J\\nred\n"
    assert "evil\\x1b[2J" in run_here("sweep", "status", "out.h5", cwd=tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    _, out, error = run_here("record", "status", path.name, cwd=tmp_path)
    assert "a\\x1b[31m;b.record: 2 evaluations" in out
    assert "farm record merge 'a\\x1b[31m;b.record' -o" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("status", "no.record"), "does not exist"),
        (("export", "a.record", "-o", "out.csv"), "expected FILE.h5 or FILE.parquet"),
        (("export", "a.record", "-o", "b.h5", "--config", "{"), "--config is not JSON"),
        (("export", "a.record", "-o", "b.h5", "--config", "1"), "expected a JSON object"),
        (("merge", "a.record", "-o", "a.record"), "is one of the records to merge"),
        (("import", "a.record", "b.record"), "Missing option '--version'"),
        (("import", "a.record", "b.record", "--version", "1"), "cannot be read"),
        (("status", "text"), "text is not a record of farm"),
    ],
)
def test_mistakes_get_one_line(path: Path, arguments: tuple[str, ...], text: str) -> None:
    (path.parent / "text").write_text("hello\n")
    assert text in " ".join(said(path, *arguments, status=2).split())


def test_merge_joins_records_for_their_owner_alone(path: Path) -> None:
    assert "3 evaluations added, 0 were there" in said(path, "merge", "a.record", "-o", "b.record")
    merged = path.with_name("b.record")
    assert stat.S_IMODE(merged.stat().st_mode) == 0o600
    file = RecordFile(merged, indexed=True)
    assert file.find(key(2)) is not None
    file.close()


def test_a_sweep_that_was_exported_is_imported_again(path: Path) -> None:
    said(path, "export", "a.record", "-o", "out.h5")
    told = said(path, "import", "out.h5", "b.record", "--version", "1")
    assert "3 evaluations added" in told
    file = RecordFile(path.with_name("b.record"), indexed=True)
    assert [file.find(key(k)) is not None for k in range(4)] == [True, True, True, False]
    file.close()
