"""State that one farm leaves for the next in the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.restart_state import RestartState

BEAM = ModelInfo(
    "beam",
    (TensorInfo("E", (3,)),),
    (TensorInfo("bent", (31,)),),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
    repeatable=False,
)
SMALL = WorkerKind(name="small", models=["beam.py"])


def test_the_next_farm_has_the_identity_and_knows_the_models(tmp_path: Path) -> None:
    one = RestartState(tmp_path / "jobs")
    assert one.models(SMALL) is None
    one.keep(SMALL, [BEAM])
    one.keep(WorkerKind(name="other", models=["a.py"]), [])
    two = RestartState(tmp_path / "jobs")
    assert two.identity == one.identity
    assert two.models(SMALL) == [BEAM]
    assert RestartState(tmp_path / "elsewhere").identity != one.identity


def test_a_kind_that_loads_something_else_is_not_known(tmp_path: Path) -> None:
    legacy = RestartState(tmp_path)
    legacy.keep(SMALL, [BEAM])
    assert legacy.models(WorkerKind(name="small", models=["plate.py"])) is None
    legacy.forget_models()
    assert legacy.models(SMALL) is None
    legacy.forget_models()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"small": 1}', '{"small": {"loads": ["beam.py"], "serves": [{}]}}']
)
def test_a_file_of_no_use_is_passed_over(tmp_path: Path, text: str) -> None:
    legacy = RestartState(tmp_path)
    (tmp_path / "models.json").write_text(text)
    assert legacy.models(SMALL) is None
    legacy.keep(SMALL, [BEAM])
    assert legacy.models(SMALL) == [BEAM]
