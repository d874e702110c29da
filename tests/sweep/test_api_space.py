"""`farm.sweep` with words, correlations, constraints and conditions, killed and extended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

import farm
from farm.sweep.file.recovery import journal_of
from tests.support.time_limits import scaled

SCRIPT = '''
import os, signal, sys
from pathlib import Path
import farm

calls = 0

def model(load, thickness, solver, order=0):
    """Kills its own process at a call that the command line names."""
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    assert type(solver) is str and (order == 0) == (solver == "euler")
    return load * len(solver) + 100 * order + thickness

SPACE = dict(
    parameters={"load": farm.normal(5, 1), "thickness": "scipy:lognorm:0.2",
                "solver": ["euler", "rk"], "order": farm.integer(1, 4)},
    correlation={("load", "thickness"): 0.7},
    where="load < 6*thickness",
    when={"order": 'solver == "rk"'},
)

if __name__ == "__main__":
    farm.sweep(model, **SPACE, design="sobol:48", seed=3, out=sys.argv[1], workers=1,
               in_flight=1, show=False).wait()
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def space(script: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the functions and values of the script."""
    monkeypatch.setattr(sys, "argv", ["script", "none", "-1"])
    found: dict[str, Any] = {"__name__": "script"}
    exec(compile(SCRIPT, str(script), "exec"), found)
    return found


def run(script: Path, out: Path, kill_at: int) -> int:
    words = [sys.executable, str(script), str(out), str(kill_at)]
    return subprocess.run(words, timeout=scaled(60.0), check=False).returncode


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_goes_on_has_the_same_rows(
    script: Path, space: dict[str, Any], tmp_path: Path
) -> None:
    killed, whole = tmp_path / "killed.h5", tmp_path / "whole.h5"
    assert run(script, killed, 20) == -signal.SIGKILL
    assert journal_of(killed).exists()
    # With one point in flight, all others are recorded.
    assert (farm.load_pandas(killed).status == "done").sum() > 10
    assert run(script, killed, -1) == 0
    assert not journal_of(killed).exists()
    farm.sweep(
        space["model"], **space["SPACE"], design="sobol:48", seed=3, out=whole, show=False
    ).wait()
    with h5py.File(killed) as one, h5py.File(whole) as other:
        for name in ("theta", "unit", "out_0", "status", "words/param_2"):
            assert one[name][:].tobytes() == other[name][:].tobytes(), name
        sums = [file["provenance"].attrs["theta_sha256"] for file in (one, other)]
        assert sums[0] == sums[1]
    frame = farm.load_pandas(killed)
    assert frame.model.notna().all()
    assert frame.order.isna().equals(frame.solver == "euler")
    assert (frame["load"] < 6 * frame.thickness).all()
    assert frame.groupby("solver", observed=True).size().sum() == 48


def test_points_have_words_and_none(space: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    sweep = farm.sweep(
        space["model"], **space["SPACE"], design="random", n=8, seed=3, out=out, show=False
    )
    points = list(sweep.as_completed())
    assert {point.parameters["solver"] for point in points} == {"euler", "rk"}
    for point in points:
        assert point.ok, point.error
        assert (point.parameters["order"] is None) == (point.parameters["solver"] == "euler")


def test_another_space_is_another_sweep(space: dict[str, Any], tmp_path: Path) -> None:
    def again(**other: Any) -> farm.Sweep:
        given = {**space["SPACE"], **other}
        return farm.sweep(
            space["model"], **given, design="random:6", seed=3, out=tmp_path / "s.h5", show=False
        )

    again().wait()
    again().wait()
    parameters = space["SPACE"]["parameters"]
    for other, complaint in (
        ({"where": "load < 7*thickness"}, "constraints: load < 6.thickness in the file, load < 7"),
        ({"when": {"order": 'solver != "euler"'}}, "condition of order: solver == .* in the file"),
        ({"correlation": {("load", "thickness"): 0.5}}, "correlations: load,thickness=0.7 in the"),
        (
            {"parameters": {**parameters, "solver": ["euler", "rk", "bdf"]}},
            "parameter solver: choice:euler,rk in the file, choice:euler,rk,bdf here",
        ),
    ):
        with pytest.raises(farm.SweepError, match=complaint):
            again(**other)


def test_a_conditional_argument_needs_a_default(tmp_path: Path) -> None:
    def model(solver, order):  # type: ignore[no-untyped-def]  # as users write them
        return order

    parameters = {"solver": ["a", "b"], "order": (0, 1)}
    options: dict[str, Any] = {"when": {"order": 'solver == "a"'}, "design": "random:4", "seed": 1}
    with pytest.raises(farm.SweepError, match="'order' of 'model' has a condition and no default"):
        farm.sweep(model, parameters, **options, out=tmp_path / "s.h5")
    sweep = farm.sweep(
        model, parameters, **options, fix={"order": -1}, out=tmp_path / "s.h5", show=False
    )
    sweep.wait()
    frame = sweep.to_pandas()
    assert (frame.model == frame.order.fillna(-1)).all()
    assert (frame.order.isna() == (frame.solver == "b")).all()
