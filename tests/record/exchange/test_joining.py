"""Merged records and imported sweeps answer the calls that they hold."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from farm.call import Call, Derivative, ModelInfo, Operation, TensorInfo
from farm.errors import Unavailable
from farm.record.exchange.joining import import_sweep, merge
from farm.record.file import RecordFile
from farm.record.key import keys_of
from farm.storage.frames import Damage
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import Design
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.store import COMPLETE, Store
from farm.sweep.space.binding import BoundParameter
from tests.record.entries import flip_bit, key, point, written
from tests.sweep.samples import raising


def ticked(_: int) -> None:
    """A progress bar that nobody sees."""


def test_merged_records_hold_each_evaluation_once(tmp_path: Path) -> None:
    one = written(tmp_path / "a", *map(point, (1, 2, 3)), info=None)
    two = written(tmp_path / "b", *map(point, (3, 4)), info=None)
    flip_bit(one, 20)
    out = tmp_path / "out"
    damage: list[tuple[Path, Damage]] = []

    def report(path: Path, place: Damage) -> None:
        damage.append((path, place))

    assert merge([one, two], out, report, ticked) == (3, 1)
    assert [(path, place.start) for path, place in damage] == [(one, 14)]
    assert merge([two], out, report, ticked) == (0, 2)
    with closing(RecordFile(out, indexed=True)) as file:
        assert [k for k in range(6) if file.find(key(k))] == [2, 3, 4]
        assert file.damage == []


def test_a_record_in_use_is_not_merged_into(tmp_path: Path) -> None:
    one = written(tmp_path / "a", point(1))
    with (
        closing(RecordFile(tmp_path / "out", indexed=False)),
        pytest.raises(Unavailable, match="is in use"),
    ):
        merge([one], tmp_path / "out", lambda path, place: None, ticked)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, out = written(tmp_path / "a", point(1)), written(tmp_path / "out")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("farm.storage.journal.os.pwrite", raising(full))
    with pytest.raises(OSError, match="out cannot be written: the disk is full"):
        merge([one], out, lambda path, place: None, ticked)


INFO = ModelInfo(
    "beam",
    (TensorInfo("x", (2,)), TensorInfo("n", (1,), "int64")),
    (TensorInfo("y", (2, 2)), TensorInfo("z", (1,))),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
)


def sweep(path: Path) -> Plan:
    """A sweep over x[1] and the config key `mesh` with the gradient of z, of three points."""
    plan = Plan(
        run_id="a",
        info=INFO,
        parameters=(BoundParameter("x[1]", input=0, entry=1), BoundParameter("mesh", whole=True)),
        fixed=(np.array([0.5, np.nan]), np.array([3.0])),
        config={"a": 1},
        design=Design("file", option="t.csv"),
        seed=1,
        theta=np.array([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]]),
        gradients=((1, 0),),
    )
    store = Store.create(path, plan)
    worker = store.worker_id("node1/1")
    for number in (0, 2):
        values = number + np.arange(float(plan.row_size))
        store.add(
            Row(number, PointStatus.DONE, worker=worker, t_run=0.5, t_start=9.0, values=values)
        )
    store.add(Row(1, PointStatus.FAILED, error="diverged"))
    store.close(COMPLETE, None)
    return plan


def test_an_imported_sweep_answers_its_calls(tmp_path: Path) -> None:
    plan = sweep(tmp_path / "s.h5")
    out = tmp_path / "out"
    assert import_sweep(tmp_path / "s.h5", out, "7", ticked) == (6, 0)
    assert import_sweep(tmp_path / "s.h5", out, "7", ticked) == (0, 6)
    with closing(RecordFile(out, indexed=True)) as file:
        inputs = (np.array([0.5, 3.0]), np.array([3]))
        evaluate = Call("beam", Operation.EVALUATE, inputs, '{"a":1,"mesh":2}')
        assert plan.calls(2)[0].config == evaluate.config
        found = file.find(keys_of(evaluate, INFO, "7")[0])
        assert found is not None
        assert [array.tolist() for array in found.outputs] == [[[2.0, 3.0], [4.0, 5.0]], [6.0]]
        assert (found.run_time_s, found.worker, found.time) == (0.5, "node1/1", 9.5)
        wrt = Derivative(1, 0, sens=np.array([1.0]))
        gradient = Call("beam", Operation.GRADIENT, inputs, evaluate.config, wrt)
        found = file.find(keys_of(gradient, INFO, "7")[0])
        assert found is not None
        assert found.outputs[0].tolist() == [7.0, 8.0]
        assert file.find(keys_of(plan.calls(1)[0], INFO, "7")[0]) is None
        assert file.find(keys_of(evaluate, INFO, "8")[0]) is None
