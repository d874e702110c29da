"""The report: one safe, self-contained page for a sweep in every state, with a ranking."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import AnsweringWorker
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.report.report import (
    MOST_STEPS,
    MOST_WORKERS,
    SCRIPTS,
    joined_runs,
    operation_of,
    ranking_of,
)
from tests.sweep.report.reports import Outcome, data_of, every_fourth_fails, made, report, unpacked
from tests.sweep.samples import done, failed, plan_of

reports = importlib.import_module("farm.sweep.report.report")  # farm.sweep is also a function

PAGE = Path(str(files("farm.sweep.report").joinpath("page")))
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"

PLAN = plan_of(
    "sobol:32",
    {"load": "0:1"},
    fixes={"E": 1},
    title=f"a <b> & c {EVIL}",
    provenance={"notes": EVIL},
)


def page_of(path: Path, plan: Plan, *outcome: Outcome, colour_by: str | None = None) -> str:
    """Return the report of a sweep with these outcomes."""
    made(path, plan, *outcome)
    return report(path, colour_by)


class Balanced(HTMLParser):
    """A parser that fails on unbalanced tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_needs_nothing_else(path: Path) -> None:
    page = Balanced()
    page.feed(page_of(path, PLAN, every_fourth_fails))
    assert page.open == []
    assert not {"link", "img", "iframe", "b"} & set(page.seen)
    assert page.seen.count("script") == 3, "the data, the library and the page's own"
    assert not {"src", "href", "action", "onerror"} & page.attributes
    assert not re.search(r"url\(|@import", (PAGE / "style.css").read_text())


def test_what_users_wrote_is_text(path: Path) -> None:
    text = page_of(path, PLAN, lambda point: {"error": EVIL, "traceback": EVIL})
    assert EVIL not in text
    assert "<title>a &lt;b&gt; &amp; c &lt;/script&gt;" in text
    assert data_of(text)["errors"]["texts"] == [EVIL]


def test_every_script_of_the_folder_is_in_the_page_and_short() -> None:
    assert {path.name for path in PAGE.iterdir()} == {*SCRIPTS, "body.html", "style.css"}
    assert [x.name for x in PAGE.iterdir() if len(x.read_text().splitlines()) > 500] == []


def test_scripts_never_read_data_as_html() -> None:
    for name in SCRIPTS:
        text = (PAGE / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_the_row_of_a_point_is_complete(path: Path) -> None:
    data = data_of(page_of(path, PLAN, every_fourth_fails))
    points = data["points"]
    assert unpacked(points["index"]).tolist() == list(range(32))
    assert unpacked(points["status"]).tolist() == [1, 1, 1, 2] * 8
    workers = [points["workers"][w] for w in unpacked(points["worker"])[:3]]
    assert workers == ["node1/0", "node1/1", "node1/2"]
    assert unpacked(points["start"])[5] == 5.0
    errors = data["errors"]
    place, error, traceback = errors["rows"][1]
    assert place == 7
    assert errors["texts"][error] == "ModelFailed: boom 1"
    assert errors["tracebacks"][traceback] == "line 1"
    assert len(errors["texts"]) == 3


@pytest.mark.parametrize("finished", [0, 7])
def test_a_sweep_that_runs_can_be_reported(path: Path, finished: int) -> None:
    store = made(path, PLAN, lambda p: {} if p < finished else None, close=False)
    text = report(path)
    store.abandon()
    assert f"{32 - finished} pending" in text
    assert len(unpacked(data_of(text)["points"]["index"])) == finished


def test_only_the_last_failure_of_a_point_counts(path: Path) -> None:
    plan = plan_of("random:2")
    store = made(path, plan, lambda point: {"error": "first"}, close=False)
    store.add(done(plan, 0, attempt=2))
    store.add(failed(1, error="second", attempt=2))
    store.close("complete", {})
    errors = data_of(report(path))["errors"]
    assert [errors["texts"][text] for _, text, _ in errors["rows"]] == ["second"]


def test_long_texts_are_cut_and_tracebacks_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LONGEST_TEXT", 50)
    monkeypatch.setattr(reports, "MOST_TEXT", 200)

    def outcome(point: int) -> Mapping[str, Any]:
        return {"error": "x" * 80, "traceback": f"{point}".rjust(40)}

    errors = data_of(page_of(path, plan_of("random:20"), outcome))["errors"]
    assert errors["texts"] == [f"{'x' * 50} …"]
    assert len(errors["tracebacks"]) == 5
    assert [row[2] for row in errors["rows"]] == [0, 1, 2, 3, 4] + [-1] * 15


def test_what_is_left_out_is_said(path: Path) -> None:
    outputs = (
        *(TensorInfo(f"y{k}", (1,)) for k in range(20)),
        *(TensorInfo(f"u{k}", (9,)) for k in range(8)),
        TensorInfo("cube", (3, 3, 3)),
    )
    info = ModelInfo("m", (TensorInfo("x", (50,)),), outputs)
    text = page_of(path, plan_of("random:3", {"x": "0:1"}, info=info))
    for note in (
        "The first 40 of 50 parameters are shown.",
        "The first 24 columns of 29 outputs are shown.",
        "Outputs with three or more axes are shown by their mean: cube.",
        "The first 6 of 8 outputs with axes are drawn.",
    ):
        assert f'<p class="note">{note}</p>' in text


def test_the_output_wanted_is_first(path: Path) -> None:
    data = data_of(page_of(path, PLAN, colour_by="u[3]"))
    assert data["outputs"][data["first"]]["name"] == "u[3]"


def known(size: int, *, workers: int = 2) -> PointColumns:
    plan = plan_of(f"random:{size}")
    columns = PointColumns.nothing(size)
    for worker in range(workers):
        columns.add(AnsweringWorker(worker, f"node/{worker}", 0.0))
    for point in range(size - 1):
        columns.add(done(plan, point, worker=point % workers, t_start=1e9 + point, t_run=0.5))
    return columns


def test_progress_counts_finished_points() -> None:
    found = operation_of(known(11))
    assert found["size"] == 11
    assert unpacked(found["progress"]["times"]).tolist() == [k + 0.5 for k in range(10)]
    assert unpacked(found["progress"]["counts"]).tolist() == list(range(1, 11))
    counts = unpacked(operation_of(known(2_001))["progress"]["counts"])
    assert len(counts) == MOST_STEPS
    assert (counts[0], counts[-1]) == (1, 2_000)


def test_bars_are_the_runs_of_some_workers_joined_where_close() -> None:
    bars = unpacked(operation_of(known(5))["gantt"]["bars"]).reshape(-1, 3)
    assert bars.tolist() == [[0, 0, 0.5], [0, 2, 0.5], [1, 1, 0.5], [1, 3, 0.5]]
    gantt = operation_of(known(100, workers=90))["gantt"]
    assert (len(gantt["workers"]), gantt["more"]) == (MOST_WORKERS, 90 - MOST_WORKERS)
    runs = np.array([[0.0, 1.0], [1.05, 1.0], [3.0, 1.0]])
    assert joined_runs(runs, 0.1) == [[0.0, pytest.approx(2.05)], [3.0, 1.0]]
    assert len(joined_runs(runs, 0.01)) == 3


def test_overhead_is_total_minus_queue_and_run() -> None:
    overhead = operation_of(known(9))["overhead"]
    assert overhead["median"] == pytest.approx(250.0)  # ms: 1 - 0.25 - 0.5 s
    assert unpacked(overhead["counts"]).sum() == 8
    found = operation_of(PointColumns.nothing(3))
    assert found["overhead"]["median"] is None
    assert len(unpacked(found["gantt"]["bars"])) == 0
    assert len(unpacked(found["progress"]["times"])) == 0


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


def ranking(
    path: Path, first: str, design: str = "random:128", outcome: Outcome | None = None
) -> dict[str, Any]:
    """Return the ranking of a sweep, in which b has most influence on y."""
    made(path, plan(design), outcome or mostly_b(plan(design)))
    return ranking_of(path, plan(design), first)


def test_parameters_are_ranked_for_each_output(path: Path) -> None:
    """An entry that is shown first, too."""
    found = ranking(path, "u[0]")
    assert found["note"] == ""
    assert {g["method"] for g in found["groups"]} == {"pawn"}
    ranked = {g["output"]: [row["parameter"] for row in g["rows"]] for g in found["groups"]}
    assert list(ranked) == ["u[0]", "y", "mean of u"]
    assert (ranked["u[0]"], ranked["y"]) == (["a", "b"], ["b", "a"])
    rows = found["groups"][1]["rows"]
    assert rows[0]["value"] > 2 * rows[1]["value"]


def test_sobol_has_intervals_and_the_share_of_a_parameter_alone(path: Path) -> None:
    group = ranking(path, "y", "saltelli:32")["groups"][0]
    assert group["method"] == "sobol"
    assert [row["parameter"] for row in group["rows"]] == ["b", "a"]
    assert all(row["confidence"] > 0 and "first" in row for row in group["rows"])


def test_why_there_is_none_is_one_line(path: Path) -> None:
    found = ranking(path, "y", "saltelli:32", every_fourth_fails)
    assert found["groups"] == []
    assert found["note"].startswith("No ranking: method sobol needs all")
    assert "\n" not in found["note"]


def test_without_the_extra_it_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "SALib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "SALib", None)
    found = ranking(path, "y")
    assert found["groups"] == []
    assert "modelfarm[sensitivity]" in found["note"]


def test_of_much_work_the_first_output_is_ranked_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_WORK", 128 * 2)
    found = ranking(path, "mean of u")
    assert [g["output"] for g in found["groups"]] == ["mean of u"]
    assert found["note"] == "Other outputs: farm sweep sensitivity s.h5."


@pytest.mark.parametrize("limit", ["MOST_WORK", "MOST_NUMBERS"])
def test_of_very_much_work_there_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(reports, limit, 255)
    found = ranking(path, "y")
    assert found["groups"] == []
    assert "farm sweep sensitivity s.h5" in found["note"]


def test_a_model_without_outputs_has_none(path: Path) -> None:
    info = ModelInfo("m", INFO.inputs, (TensorInfo("y", (0,)),))
    empty = plan_of("random:4", {"a": "0:1", "b": "0:1"}, info=info)
    assert "no outputs" in ranking_of(path, empty, None)["note"]
