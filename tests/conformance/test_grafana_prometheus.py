"""A real Prometheus scrapes a farm at work, and answers every query of the Grafana dashboard."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import farm
from farm.transports.connection import read_connection
from tests.conformance.test_grafana import DASHBOARD, FOLDER, METRIC
from tests.support.coroutines import wait_until
from tests.support.time_limits import scaled

pytestmark = pytest.mark.slow

LIMIT_S = scaled(60.0)
"""Limit for Prometheus to start and to scrape a few times."""

SCRAPES = 4
"""Scrapes to wait for: a rate needs two within its interval."""

CHOSEN = {"$job": "farm", "$model": ".*", "$__rate_interval": "5m", "${source}": "prometheus"}
"""Values of the dashboard's variables, as Grafana puts them into a query."""


class Prometheus:
    """A Prometheus on a free port of this machine."""

    def __init__(self, folder: Path, config: str) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("needs prometheus (apt install prometheus)")
        (folder / "prometheus.yml").write_text(config)
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def _address(self) -> str | None:
        assert self._process.poll() is None, self._log.read_text()
        for socket in psutil.Process(self._process.pid).net_connections("tcp4"):
            if socket.status == psutil.CONN_LISTEN:
                return f"http://127.0.0.1:{socket.laddr.port}"
        return None

    def get(self, path: str, **arguments: str) -> Any:
        """Return the data of an answer of its API; an error of a query fails the test."""
        address = self._address()
        if address is None:
            raise ConnectionRefusedError
        url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is not ready yet
                raise ConnectionRefusedError from None
            raise AssertionError(f"{arguments}: {error.read().decode()}") from None
        assert told["status"] == "success"
        assert not told.get("warnings")
        return told["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def wait_for_scrapes(self) -> None:
        def are_there() -> bool:
            with contextlib.suppress(ConnectionRefusedError, urllib.error.URLError):
                found = self.query('sum_over_time(up{job="farm"}[5m])')
                return bool(found) and float(found[0]["value"][1]) >= SCRAPES
            return False

        wait_until(are_there, LIMIT_S, what=f"{SCRAPES} scrapes", every_s=0.2)


@farm.model(inputs={"x": 1}, outputs={"y": 1}, max_batch=8)
def twice(x: Any) -> Any:
    return 2 * x


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def positive(x: Any) -> Any:
    if x[0] < 0:
        raise ValueError("x is negative")
    return x


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, str]]:
    """A Prometheus that has scraped a farm at work, and what the farm shows."""
    folder = tmp_path_factory.mktemp("farm")
    with farm.serve(twice, positive, workers=2, port=0, dir=folder / "run") as client:
        connection = read_connection(folder / "run" / "farm.json")
        assert connection.token is not None
        (folder / "farm.token").write_text(connection.token)
        config = (FOLDER / "prometheus.yml").read_text()
        for old, new in (
            ("127.0.0.1:4242", urllib.parse.urlsplit(connection.url).netloc),
            ("scrape_interval: 5s", "scrape_interval: 500ms"),
            ("# authorization:", "authorization:"),
            ("#   credentials_file: farm", f"  credentials_file: {folder / 'farm'}"),
        ):
            assert old in config
            config = config.replace(old, new)
        prometheus = Prometheus(folder, config)
        try:
            list(client.model("twice").map(np.linspace(0, 1, 64).reshape(-1, 1).tolist()))
            list(client.model("positive").map([[1.0], [-1.0]] * 8, return_errors=True))
            sweep = farm.sweep(
                client.model("twice"), {"x": (0, 1)}, n=16, out=folder / "s.h5", show=False
            )
            sweep.wait()
            prometheus.wait_for_scrapes()
            request = urllib.request.Request(
                f"{connection.url}/metrics",
                headers={"Authorization": f"Bearer {connection.token}"},
            )
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                yield prometheus, answer.read().decode()
        finally:
            prometheus.stop()


def chosen(text: str) -> str:
    for variable, value in CHOSEN.items():
        text = text.replace(variable, value)
    assert "$" not in text, "a variable that the dashboard does not define"
    return text


TARGETS = [
    (panel["title"], target) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
]


@pytest.mark.parametrize(
    ("title", "target"), TARGETS, ids=[f"{title} {t['refId']}" for title, t in TARGETS]
)
def test_a_query_has_an_answer_wherever_the_farm_has_data(
    at_work: tuple[Prometheus, str], title: str, target: dict[str, Any]
) -> None:
    prometheus, metrics = at_work
    found = prometheus.query(chosen(target["expr"]))
    named = {metric for metric, _ in METRIC.findall(target["expr"])}
    if all(re.search(rf"^{metric}[{{ ]", metrics, re.MULTILINE) for metric in named):
        assert found, f"{title} is empty"
    for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
        assert all(label in row["metric"] for row in found), f"the legend names {label}"


def test_the_farm_has_data_for_nearly_all_panels(at_work: tuple[Prometheus, str]) -> None:
    prometheus, _ = at_work
    empty = {title for title, target in TARGETS if not prometheus.query(chosen(target["expr"]))}
    # There is no batch system here, and a sweep that has ended has no time left.
    assert empty <= {"Jobs of the batch system", "Time left"}


@pytest.mark.parametrize("name", ["job", "model"])
def test_a_variable_lists_what_there_is(at_work: tuple[Prometheus, str], name: str) -> None:
    prometheus, _ = at_work
    (variable,) = (v for v in DASHBOARD["templating"]["list"] if v["name"] == name)
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert match is not None
    values = prometheus.get(f"label/{match[2]}/values", **{"match[]": chosen(match[1])})
    assert values == {"job": ["farm"], "model": ["positive", "twice"]}[name]
