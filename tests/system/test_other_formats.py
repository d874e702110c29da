"""Files of another format of farm: every command that reads or continues one refuses it.

docs/sweeps.md, "Before an upgrade of farm", says so.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from farm.sweep.file.layout import LAYOUT
from farm.sweep.file.store import Store
from tests.support.dispatcher_farm import run_here
from tests.support.experiment_configs import sobol_config
from tests.sweep.samples import done, plan_of

MODEL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def line(x):
    return 2 * x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "line.py").write_text(MODEL)
    (tmp_path / "tune.ini").write_text(sobol_config("line", 4))
    plan = plan_of("random:4")
    store = Store.create(tmp_path / "s.h5", plan)
    store.add(done(plan, 0))
    store.close("interrupted", {})
    (tmp_path / "s.h5.status.json").unlink(missing_ok=True)
    (tmp_path / "r.record").write_bytes(b"farm record 9\n" + bytes(40))
    (tmp_path / "e.db").write_bytes(b"farm experiments journal 9\n" + bytes(40))
    return tmp_path


def refusal(folder: Path, command: str) -> str:
    """Run a command, which changes none of the files; return its one line of error."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    status, out, errors = run_here(*command.split(), cwd=folder)
    assert {path: path.read_bytes() for path in before} == before
    assert (status, out) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("farm: error: ")
    return line


SWEEP = [
    "sweep --resume s.h5 line.py",
    "sweep line.py --param x=0:1 --design grid:4 -o s.h5",
    "sweep extend s.h5 --points 1 line.py",
    "sweep rerun s.h5 --point 0 line.py",
    "sweep status s.h5",
    "sweep failures s.h5",
    "sweep export s.h5 --csv s.csv",
    "sweep plot s.h5",
    "record import s.h5 new.record --version 1",
]


@pytest.mark.parametrize("command", SWEEP)
def test_a_sweep_file(folder: Path, command: str) -> None:
    with h5py.File(folder / "s.h5", "a") as file:
        file.attrs["farm_layout"] = "sweep/99"
    line = refusal(folder, command)
    assert f"layout {LAYOUT} but of sweep/99" in line
    assert "the release of farm that wrote it" in line


@pytest.mark.parametrize("command", SWEEP)
def test_the_journal_beside_a_sweep_file(folder: Path, command: str) -> None:
    path = folder / "s.h5.journal"
    first, rest = path.read_bytes().split(b"\n", 1)
    assert first == b"farm sweep journal 1"
    path.write_bytes(b"farm sweep journal 9\n" + rest)
    line = refusal(folder, command)
    assert "s.h5.journal has version 9, this farm writes 1; use the release" in line


@pytest.mark.parametrize(
    "command",
    [
        "serve line.py --port 0 --record r.record",
        "record status r.record",
        "record export r.record -o new.h5",
        "record import s.h5 r.record --version 1",
        "record merge r.record -o new.record",
    ],
)
def test_a_record(folder: Path, command: str) -> None:
    assert "r.record has version 9 of farm's record format; this farm reads version 1; use the" in (
        refusal(folder, command)
    )


@pytest.mark.parametrize(
    "command",
    [
        "experiment run tune.ini line.py --journal e.db --resume",
        "experiment serve --aepsych 127.0.0.1:0 --journal e.db",
        "experiment status e.db",
        "experiment best e.db",
        "experiment export e.db new.csv",
        "experiment plot e.db",
    ],
)
def test_the_journal_of_experiments(folder: Path, command: str) -> None:
    assert "the journal e.db has version 9, this farm writes 2; use the release" in (
        refusal(folder, command)
    )
