"""The end of a job's output."""

from __future__ import annotations

from pathlib import Path

from farm.provision.batch.output import last_words


def test_farms_own_error_counts_more_than_what_comes_after_it(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    path.write_text("loading\nfarm: error: no file beam.py\nsrun: error: cpu1: task 0\n")
    assert last_words(path) == f"; {path} ends: farm: error: no file beam.py"
    path.write_text("loading\n\nmodule: command not found\nkilled\n")
    assert last_words(path) == f"; {path} ends: module: command not found / killed"


def test_only_the_end_of_a_long_output_is_read(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    path.write_bytes(b"farm: error: an old one\n" + b"\xff" * 9000 + b"\nlast\n")
    assert last_words(path).endswith(" / last")
    assert "an old one" not in last_words(path)


def test_no_output_is_said(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    assert last_words(path) == f"; {path} cannot be read"
    path.touch()
    assert last_words(path) == f"; {path} is empty"
