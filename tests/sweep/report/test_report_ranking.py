"""The ranking of parameters in a report, and the reasons why there is none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from farm.sweep.report.report import ranking_of
from tests.sweep.report.reports import Outcome, every_fourth_fails, made
from tests.sweep.samples import plan_of

ranking = importlib.import_module("farm.sweep.report.report")  # farm.sweep is also a function

INFO = ModelInfo(
    "m",
    (TensorInfo("a", (1,)), TensorInfo("b", (1,))),
    (TensorInfo("y", (1,)), TensorInfo("u", (3,))),
)


def plan(design: str = "random:128") -> Plan:
    return plan_of(design, {"a": "0:1", "b": "0:1"}, info=INFO)


def mostly_b(plan: Plan) -> Outcome:
    def outcome(point: int) -> Mapping[str, Any]:
        a, b = plan.theta[point]
        return {"values": np.array([0.1 * a + b, a, b, 2 * b])}

    return outcome


def test_parameters_are_ranked_for_each_output(tmp_path: Path) -> None:
    made(tmp_path / "s.h5", plan(), mostly_b(plan()))
    found = ranking_of(tmp_path / "s.h5", plan(), "y")
    assert [(g["output"], g["method"]) for g in found["groups"]] == [
        ("y", "pawn"),
        ("mean of u", "pawn"),
    ]
    rows = found["groups"][0]["rows"]
    assert [row["parameter"] for row in rows] == ["b", "a"]
    assert rows[0]["value"] > 2 * rows[1]["value"]
    assert found["note"] == ""


def test_an_entry_that_is_shown_first_is_ranked_too(tmp_path: Path) -> None:
    made(tmp_path / "s.h5", plan(), mostly_b(plan()))
    found = ranking_of(tmp_path / "s.h5", plan(), "u[0]")
    assert [g["output"] for g in found["groups"]] == ["u[0]", "y", "mean of u"]
    assert found["groups"][0]["rows"][0]["parameter"] == "a"


def test_sobol_has_intervals_and_the_share_of_a_parameter_alone(tmp_path: Path) -> None:
    designed = plan("saltelli:32")
    made(tmp_path / "s.h5", designed, mostly_b(designed))
    group = ranking_of(tmp_path / "s.h5", designed, "y")["groups"][0]
    assert group["method"] == "sobol"
    assert [row["parameter"] for row in group["rows"]] == ["b", "a"]
    assert all(row["confidence"] > 0 and "first" in row for row in group["rows"])


def test_why_there_is_none_is_one_line(tmp_path: Path) -> None:
    designed = plan("saltelli:32")
    made(tmp_path / "s.h5", designed, every_fourth_fails)
    found = ranking_of(tmp_path / "s.h5", designed, "y")
    assert found["groups"] == []
    assert found["note"].startswith("No ranking: method sobol needs all")
    assert "\n" not in found["note"]


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "s.h5", plan(), mostly_b(plan()))
    for name in [name for name in sys.modules if name.split(".")[0] == "SALib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "SALib", None)
    found = ranking_of(tmp_path / "s.h5", plan(), "y")
    assert found["groups"] == []
    assert "modelfarm[sensitivity]" in found["note"]


def test_of_much_work_the_first_output_is_ranked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "s.h5", plan(), mostly_b(plan()))
    monkeypatch.setattr(ranking, "MOST_WORK", 128 * 2)
    found = ranking_of(tmp_path / "s.h5", plan(), "mean of u")
    assert [g["output"] for g in found["groups"]] == ["mean of u"]
    assert found["note"] == "Other outputs: farm sweep sensitivity s.h5."


@pytest.mark.parametrize("limit", ["MOST_WORK", "MOST_NUMBERS"])
def test_of_very_much_work_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    made(tmp_path / "s.h5", plan(), mostly_b(plan()))
    monkeypatch.setattr(ranking, limit, 255)
    found = ranking_of(tmp_path / "s.h5", plan(), "y")
    assert found["groups"] == []
    assert "farm sweep sensitivity s.h5" in found["note"]


def test_a_model_without_outputs_has_none(tmp_path: Path) -> None:
    info = ModelInfo("m", INFO.inputs, (TensorInfo("y", (0,)),))
    empty = plan_of("random:4", {"a": "0:1", "b": "0:1"}, info=info)
    assert "no outputs" in ranking_of(tmp_path / "s.h5", empty, None)["note"]
