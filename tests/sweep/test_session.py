"""`farm.sweep(...)`: iterating over points, progress, failures, xarray, resuming, stopping."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import farm
from farm.sweep.errors import SweepError
from farm.sweep.file.recovery import journal_of
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.run.evaluator import Threads
from farm.sweep.run.run import Run
from tests.support.coroutines import LIMIT_S, wait_until
from tests.sweep.samples import raising


class Beam(farm.Model):
    inputs = {"k": 1, "x": 2}
    outputs = {"y": 1, "field": (2, 2)}
    gate: threading.Event | None = None

    def __init__(self) -> None:
        self._begun = list[int]()

    @property
    def calls(self) -> int:
        return len(self._begun)

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> dict[str, np.ndarray]:
        self._begun.append(1)  # unlike a sum, for any number of threads
        if self.gate is not None and self.calls > 5:
            self.gate.wait(LIMIT_S)
        if inputs["k"][0] > 0.75:
            raise ValueError("k is too large")
        return {"y": inputs["k"] * 2, "field": np.outer(inputs["x"], inputs["x"])}

    def gradient(
        self,
        out_wrt: int,
        in_wrt: int,
        inputs: farm.Inputs,
        sens: np.ndarray,
        config: farm.Config,
    ) -> np.ndarray:
        return 2 * sens if in_wrt == 0 else np.zeros(2)


PARAMETERS = {"k": (0, 1), "x": farm.log(1, 10)}


def begun(path: Path, model: Any = Beam, parameters: Any = PARAMETERS, **more: Any) -> farm.Sweep:
    """Begin a sweep into `path`."""
    return farm.sweep(model, parameters, **{"n": 8, "out": path, "show": False, **more})


def test_points_come_as_they_finish(path: Path) -> None:
    sweep = begun(path, n=32, seed=7)
    points = list(sweep.as_completed())
    assert sorted(point.index for point in points) == list(range(32))
    for point in points:
        assert set(point.parameters) == {"k", "x[0]", "x[1]"}
        if point.parameters["k"] > 0.75:
            assert not point.ok
            assert (point.status, point.outputs) == ("failed", {})
            assert "k is too large" in point.error
        else:
            assert point.ok
            assert point.outputs["y"].tolist() == [2 * point.parameters["k"]]
            assert point.outputs["field"].shape == (2, 2)
            assert point.run_time_s > 0
    assert sweep.progress.state == COMPLETE
    assert sweep.progress.failed == len(sweep.failures) == 8
    assert list(sweep.as_completed()) == []
    assert "32/32 points, 8 failed, complete" in repr(sweep)


def test_xarray_and_gradients(path: Path) -> None:
    k = {"k": [0.1, 0.2, 0.3]}
    sweep = begun(path, parameters=k, design="grid", n=None, fix={"x": 3}, gradient=["y"])
    gradients = [point.gradients["y", "k"].tolist() for point in sweep.as_completed()]
    assert gradients == [[[2.0]]] * 3
    data = sweep.to_xarray()
    assert data.field.shape == (3, 2, 2)
    assert data.k.values.tolist() == [0.1, 0.2, 0.3]


def test_a_model_of_a_function_and_one_in_a_file(tmp_path: Path) -> None:
    @farm.model(inputs={"a": 1}, outputs={"b": 1})
    def square(a: np.ndarray) -> np.ndarray:
        return np.asarray(a**2)

    with begun(tmp_path / "square.h5", square, {"a": (0, 2)}) as sweep:
        pass
    assert sweep.progress.done == 8
    assert sweep.to_xarray().b.values == pytest.approx(sweep.to_xarray().a.values ** 2)
    (tmp_path / "model.py").write_text(
        "import farm\n@farm.model(inputs={'a': 1}, outputs={'b': 1})\ndef f(a): return a\n"
    )
    sweep = begun(tmp_path / "s.h5", str(tmp_path / "model.py"), {"a": (0, 1)}, design="lhs")
    assert sweep.wait().done == 8


def test_a_farm_that_somebody_else_has(path: Path) -> None:
    threads = Threads({"beam": Beam()}, workers=2)
    begun(path, "beam", on=threads).wait()
    threads.describe("beam")  # its threads are still open
    threads.close()
    with pytest.raises(SweepError, match="with on="):
        begun(path.with_name("t.h5"), on=threads)


def test_the_same_call_again_continues(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = begun(path, n=16, seed=1)
    first.wait()
    model = Beam()
    again = begun(path, model, n=16, show=True)
    assert again.wait().done == first.progress.done
    assert model.calls == 0
    said = capsys.readouterr().err
    assert f"{path} has this sweep: 16 of 16 points are finished" in said


def test_every_point_comes_in_a_sweep_that_continues(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Beam()
    model.gate = opened_when_stopped(monkeypatch)
    sweep = begun(path, model, n=64, seed=3, workers=2)
    wait_until(lambda: sweep.progress.finished >= 5)
    sweep.stop()
    there = sweep.progress.finished
    assert (sweep.progress.state, sweep.progress.pending) == ("interrupted", 64 - there)
    assert journal_of(path).exists()
    model = Beam()
    points = list(begun(path, model, n=64, seed=3).as_completed())
    assert model.calls == 64 - there
    assert sorted(point.index for point in points) == list(range(64))
    for point in points:
        assert point.ok == (point.parameters["k"] <= 0.75)
        if point.ok:
            assert point.outputs["y"].tolist() == [2 * point.parameters["k"]]
        else:
            assert "k is too large" in point.error


class Stiff(Beam):
    """The class Beam after an edit."""

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> dict[str, np.ndarray]:
        return {"y": inputs["k"] * 3, "field": np.outer(inputs["x"], inputs["x"])}


class Other(Beam):
    outputs = {"y": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> dict[str, np.ndarray]:
        return {"y": inputs["k"]}


@pytest.mark.parametrize(
    ("model", "more", "difference"),
    [
        (Beam, {"n": 32}, "design: sobol:16 in the file, sobol:32 here"),
        (Beam, {"seed": 2}, "seed: 1 in the file, 2 here"),
        (Beam, {"config": {"mesh": 2}}, "config mesh: none in the file, 2 here"),
        (Beam, {"gradient": ["y"]}, "gradients: none in the file, y here"),
        (Stiff, {}, "source of the model: code:"),
        (Other, {}, "outputs of the model: y"),
    ],
)
def test_another_sweep_is_refused(
    path: Path, model: type[farm.Model], more: dict[str, Any], difference: str
) -> None:
    named: Any = type("Beam", (model,), {"name": "beam"})
    first: Any = type("Beam", (Beam,), {"name": "beam"})
    begun(path, first, n=16, seed=1).wait()
    before = path.read_bytes()
    more = {"n": 16, "seed": 1, **more}
    with pytest.raises(SweepError) as caught:
        begun(path, named, **more)
    assert difference in str(caught.value)
    assert path.read_bytes() == before
    assert begun(path, named, **more, overwrite=True).wait().pending == 0
    assert not journal_of(path).exists()


def test_a_file_may_be_refused_in_any_case(path: Path) -> None:
    begun(path, seed=1, resume=False).wait()
    with pytest.raises(SweepError, match="exists"):
        begun(path, seed=1, resume=False)
    path.write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(SweepError, match="no sweep can be read from it"):
            begun(path, seed=1, overwrite=overwrite)
    assert path.read_text() == "precious"


def test_a_second_sweep_into_one_file_is_refused_before_it_evaluates(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Beam()
    model.gate = opened_when_stopped(monkeypatch)
    sweep = begun(path, model, n=64, seed=3, workers=1)
    second = Beam()
    with pytest.raises(SweepError, match="is writing this sweep"):
        begun(path, second, n=64, seed=3)
    assert second.calls == 0
    sweep.stop()


def opened_when_stopped(monkeypatch: pytest.MonkeyPatch, method: str = "_leave") -> threading.Event:
    """Open a gate once a run has cancelled its points, so that running calls end after that."""
    gate, stopping = threading.Event(), getattr(Run, method)

    def stop_and_open(run: Run, *arguments: Any) -> None:
        stopping(run, *arguments)
        gate.set()

    monkeypatch.setattr(Run, method, stop_and_open)
    return gate


def test_it_stops_once_running_points_have_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Beam()
    model.gate = opened_when_stopped(monkeypatch, "_end")
    sweep = begun(path, model, n=64, seed=3, workers=2, in_flight=2)
    wait_until(lambda: model.calls >= 7)
    sweep.stop(running=True)
    assert sweep.progress.state == "interrupted"
    assert sweep.progress.finished == model.calls < 64


def test_what_ends_a_sweep_is_raised_where_it_is_awaited(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "close", raising(OSError("disk on fire")))
    sweep = begun(path)
    with pytest.raises(OSError, match="on fire"):
        list(sweep.as_completed())
    with pytest.raises(OSError, match="on fire"):
        sweep.wait()


def test_an_error_in_the_block_stops_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Beam()
    model.gate = opened_when_stopped(monkeypatch)
    with (
        pytest.raises(ZeroDivisionError),
        begun(path, model, n=64, workers=1) as sweep,
    ):
        raise ZeroDivisionError
    assert sweep.progress.state == "interrupted"


def test_mistakes_leave_nothing_behind(path: Path) -> None:
    mistakes: tuple[dict[str, Any], ...] = (
        {"parameters": {"k": (1, 0)}},
        {"parameters": {"k": (0, 1)}},
        {"n": None},
        {"gradient": ["z"]},
        {"parameters": {**PARAMETERS, "k": (0.8, 0.9)}},  # the probe fails
    )
    for wrong in mistakes:
        with pytest.raises(SweepError):
            begun(path, **wrong)
        assert list(path.parent.iterdir()) == []


def test_without_a_stream_outputs_are_in_the_file_only(path: Path) -> None:
    sweep = begun(path, stream=False)
    assert list(sweep.as_completed()) == []
    with h5py.File(path) as file:
        assert np.count_nonzero(file["status"][:]) == 8


def test_limits_are_passed_on(path: Path) -> None:
    failing = {**PARAMETERS, "k": (0.8, 0.9)}
    sweep = begun(path, Beam, failing, n=64, probe=False, in_flight=1, max_failures=3)
    assert sweep.wait().state == "too many failures"


def test_it_shows_a_bar_unless_told_otherwise(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    begun(path, show=True).wait()
    assert "8/8" in capsys.readouterr().err
    begun(path.with_name("t.h5")).wait()
    assert capsys.readouterr().err == ""


def costs_in(path: Path) -> tuple[Any, Any]:
    """Return the costs that a file has, and the parameter k of its points."""
    with h5py.File(path) as file:
        return file["cost"][:], file["theta"][:, 0]


def test_cost_as_text_and_as_numbers(path: Path, tmp_path: Path) -> None:
    begun(path, seed=7, cost="1 + k").wait()
    costs, k = costs_in(path)
    assert np.array_equal(costs, 1 + k)
    begun(tmp_path / "n.h5", seed=7, cost=np.arange(8.0)).wait()
    assert costs_in(tmp_path / "n.h5")[0].tolist() == list(range(8))


def test_cost_of_the_model(path: Path, tmp_path: Path) -> None:
    class Costly(Beam):
        def cost(self, inputs: farm.Inputs, config: farm.Config) -> float:
            return float(10 * inputs["k"][0])

    begun(path, Costly, seed=7).wait()
    threads = Threads({"beam": Costly()})
    begun(tmp_path / "asked.h5", "beam", on=threads).wait()
    threads.close()
    for made in (path, tmp_path / "asked.h5"):
        costs, k = costs_in(made)
        assert np.allclose(costs, 10 * k)
    begun(tmp_path / "o.h5", Costly, order="shuffled").wait()
    with h5py.File(tmp_path / "o.h5") as file:
        assert "cost" not in file


def test_a_column_of_a_table_is_the_cost(path: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("k,x[0],x[1],h\n0.5,1,2,9\n0.25,3,4,8\n")
    begun(path, Beam, {}, design=f"file:{tmp_path}/p.csv", n=None, cost="column:h").wait()
    assert costs_in(path)[0].tolist() == [9.0, 8.0]


def test_an_order_that_does_not_exist(path: Path) -> None:
    with pytest.raises(SweepError, match="order 'best': expected auto, shuffled, given"):
        begun(path, order="best")
    with pytest.raises(SweepError, match="no parameter 'n'"):
        begun(path, cost="n")
    assert not path.exists()
