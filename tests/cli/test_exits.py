"""Exit statuses: complete, distinct, and the same in code, help and documents."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.cli import exits, main, run
from farm.cli.exits import OF_ERROR, TABLE, VerbFailed, in_one_line, status_of
from farm.errors import FarmError, InvalidInput, ModelFailed, Overloaded, Unavailable
from farm.machine import keeper
from farm.sweep.errors import SweepError
from farm.sweep.file.store import COMPLETE, Store
from tests.support.experiment_configs import sobol_config
from tests.sweep.samples import done, plan_of

PLAN = plan_of("random:4")
SQUARE = """import farm
@farm.model(inputs={"x": 1}, outputs={"y": 1})
def square(x):
    return x**2
"""

PAGE = Path(__file__).parents[2] / "docs" / "seeing" / "terminal.md"


def test_every_error_has_a_status_with_a_meaning() -> None:
    own = [kind for kind in FarmError.kinds.values() if kind.__module__ == FarmError.__module__]
    assert set(own) == set(OF_ERROR)
    assert set(OF_ERROR.values()) <= set(TABLE)
    assert exits.USAGE != exits.MODEL_FAILED != exits.WORKER_LOST != exits.UNREACHABLE


def test_the_document_has_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {int(number): meaning for number, meaning in rows} == TABLE


def test_help_has_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for number, meaning in TABLE.items():
        assert re.search(rf"^    {number:<4}{re.escape(meaning)}$", shown, re.MULTILINE)


def test_the_keeper_knows_the_statuses_of_a_front_door() -> None:
    assert (keeper.INTERRUPTED, keeper.REFUSED) == (exits.INTERRUPTED, exits.USAGE)


def test_the_status_is_that_of_the_error_or_of_its_cause() -> None:
    class Special(Overloaded):
        pass

    del FarmError.kinds["Special"]  # it is of this test alone
    assert status_of(Unavailable("")) == exits.UNREACHABLE
    assert status_of(Special("")) == exits.UNREACHABLE
    assert status_of(InvalidInput("")) == status_of(ValueError()) == exits.USAGE
    error = SweepError("all points failed")
    error.__cause__ = ModelFailed("")
    assert VerbFailed(error).status == exits.MODEL_FAILED
    assert VerbFailed(error).format_message() == "all points failed"
    assert VerbFailed(error, "other words").format_message() == "other words"


def test_a_fault_of_farm_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(arguments: list[str] | None) -> int:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("farm.cli.run", fault)
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    assert ended.value.code == exits.FAULT
    assert "ZeroDivisionError: a fault" in capsys.readouterr().err


@pytest.fixture(params=["ro", "size=4k,nr_inodes=2"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of a file system that is read-only or full, where even root cannot write."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", request.param, "none", str(folder)], check=True)
    if request.param != "ro":
        (folder / "all").touch()
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize(
    "words",
    [
        "init model.py",
        "sweep {model} -n 1 --param x=0,1 --design sobol:4 -o s.h5",
        "serve {model} --port 0",
        "experiment serve --journal j.db --aepsych 127.0.0.1:0",
        "experiment run {config} {model} -n 1 --journal e.db",
        "record import {sweep} r.record --version 1",
        "sweep export {sweep} --csv s.csv",
        "sweep plot {sweep} -o s.html",
        "sweep snapshot {sweep} -o copy.h5",
        "launcher --path",
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line(
    unwritable: Path,
    tmp_path: Path,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model, config = tmp_path / "model.py", tmp_path / "tune.ini"
    model.write_text(SQUARE)
    config.write_text(sobol_config("square", 2))
    made = Store.create(tmp_path / "s.h5", PLAN)
    for point in range(PLAN.size):
        made.add(done(PLAN, point))
    made.close(COMPLETE, {})
    monkeypatch.chdir(unwritable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(unwritable))
    filled = words.format(model=model, config=config, sweep=tmp_path / "s.h5")
    status = run(filled.split())
    out, err = capfd.readouterr()
    assert (status, err.count("Traceback")) == (exits.USAGE, 0), out + err
    last = err.strip().splitlines()[-1]
    assert last.startswith("farm: error: ")
    assert re.search("Read-only file system|No space left", last)
    assert "folder" in last, "it says what to do"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "s.h5.lock"),
            r"^s\.h5\.lock: Permi.*own",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "^a/b: No space .*make room"),
        (OSError("it has 3 bytes, expected 32; remove it"), "^it has 3 bytes, .*; remove it$"),
        (OSError(errno.EIO, "Input/output error", "s.h5"), "^$"),
    ],
)
def test_what_the_user_can_mend_is_one_line(error: OSError, line: str) -> None:
    assert re.search(line, in_one_line(error))
