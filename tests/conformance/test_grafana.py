"""The dashboard of examples/grafana names only metrics and labels that a farm has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import farm
from farm.model import Config, Inputs
from tests.support.front_door import front_door

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())

SOURCE = {"type": "prometheus", "uid": "${source}"}
VARIABLE = re.compile(r"\$\{?(\w+)")
UNITS = {"Bps", "bytes", "ops", "percentunit", "s", "short"}
"""Ids of units of Grafana's `getValueFormats` that the dashboard uses."""

METRIC = re.compile(r"\b((?:farm|process)_[a-z_]+)(?:\{([^}]*)\})?")
OF_PROMETHEUS = {"job", "le"}
"""Labels that Prometheus adds, or that belong to the buckets of a histogram."""

CLUSTER = {
    "system": "SLURM",
    "problem": "",
    "kinds": [{"name": "cpu", "wanted": 1}],
    "jobs": [{"kind": "cpu", "phase": "pending"}],
}
PROGRESS = [{"kind": "sweep", "done": 1, "failed": 0, "total": 9, "ends_in_s": 8.0}]


class Twice(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return 2 * inputs["x"]


def expressions() -> Iterator[str]:
    """Yield every query of the dashboard."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.fixture(scope="module")
def scraped() -> dict[str, set[str]]:
    """The labels of each sample that a farm shows, by name."""
    with front_door({"twice": Twice()}) as door:
        question = {"name": "twice", "input": [[1]], "config": {}}
        assert door.ask("POST", "/Evaluate", question).status == 200
        door.dispatcher.add_part("cluster", lambda: CLUSTER)
        door.dispatcher.add_part("progress", lambda: PROGRESS)
        text = door.ask("GET", "/metrics").data.decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_what_a_query_names_exists(scraped: dict[str, set[str]], expression: str) -> None:
    named = METRIC.findall(expression)
    assert named
    for metric, matchers in named:
        assert metric in scraped
        labels = set(re.findall(r"(\w+)(?:=~|!=|=)", matchers))
        assert labels <= scraped[metric] | OF_PROMETHEUS
    grouped = {
        name for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(", ")
    }
    assert grouped <= {label for metric, _ in named for label in scraped[metric]} | OF_PROMETHEUS


def test_most_metrics_are_on_the_dashboard(scraped: dict[str, set[str]]) -> None:
    shown = {name for text in expressions() for name, _ in METRIC.findall(text)}
    stems = {re.sub("_(bucket|count|sum)$", "", name) for name in shown}
    ours = {re.sub("_(bucket|count|sum)$", "", name) for name in scraped if name.startswith("farm")}
    assert ours - stems == {"farm_slots", "farm_batch_system_up"}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """See "Dashboard JSON model" in Grafana's manual; version 39 is that of Grafana 10.4 and 11."""
    assert DASHBOARD["schemaVersion"] == 39
    assert re.fullmatch(r"[\w-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD.get("id") is None, "an id belongs to one Grafana"
    assert {"title", "tags", "time", "refresh", "annotations", "panels"} <= DASHBOARD.keys()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            assert panel["panels"] == [], "the panels of a row that is open stand beside it"
            assert panel["collapsed"] is False
            continue
        assert panel["type"] in {"stat", "timeseries", "heatmap"}
        assert panel["datasource"] == SOURCE
        assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        names = [target["refId"] for target in panel["targets"]]
        assert names == list("ABCDEF")[: len(names)], "Grafana runs one query for each refId"
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            assert target["legendFormat"]
        if panel["type"] == "heatmap":
            assert [t["format"] for t in panel["targets"]] == ["heatmap"]
            assert panel["options"]["calculate"] is False, "the buckets are those of Prometheus"


def test_a_variable_is_defined_before_it_is_used() -> None:
    defined: set[str] = {"__rate_interval"}
    for variable in DASHBOARD["templating"]["list"]:
        used = {*VARIABLE.findall(json.dumps(variable))}
        assert used <= defined
        defined.add(variable["name"])
    used = {*VARIABLE.findall(json.dumps(DASHBOARD["panels"]))}
    assert used == defined


def test_prometheus_accepts_the_configuration() -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool (apt install prometheus)")
    command = [program, "check", "config", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
