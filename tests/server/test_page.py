"""The status page: self-contained in one file, and consistent with /farm/status."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import farm
from farm.experiment.state.experiment import Snapshot
from farm.server.page import PAGE
from farm.transports.dask.processes import Processes
from tests.scheduler.recorder import Recorder
from tests.support.front_door import front_door

TEXT = PAGE.decode()


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x: Any) -> Any:
    return 2 * x


def test_the_page_is_served_whole_and_needs_nothing_from_elsewhere() -> None:
    with front_door({"double": double}) as door:
        response = door.ask("GET", "/")
        assert response.data == PAGE
        assert "default-src 'none'" in response.headers["content-security-policy"]
        head = door.ask("HEAD", "/")
        assert (head.status, head.data) == (200, b"")
        assert head.headers["content-length"] == str(len(PAGE))
    links = re.findall(r"""(?:src|href)=["']([^"']*)""", TEXT)
    assert links
    assert all(link.startswith(("/", "data:")) for link in links)
    assert "@import" not in TEXT
    assert "url(" not in TEXT


def test_text_from_the_farm_is_never_markup() -> None:
    assert "innerHTML" not in TEXT
    assert "document.write" not in TEXT


def test_the_page_reads_only_what_the_status_says() -> None:
    with front_door({"double": double}) as door:
        asked = {"name": "double", "input": [[1]]}
        door.ask("POST", "/Evaluate", asked, headers={"Farm-Chain": "chain 1"})
        status = door.ask("GET", "/farm/status").json()
    parts = {"dask", "cluster", "system", "kinds", "jobs", "problem", "experiments", "restarts"}
    assert used("state") <= {*status, *parts}
    assert used("restarted") <= {"count", "reason", "time"}  # those of server/restarts.py
    assert used("w", "worker") <= set(status["workers"][0])
    dask = Processes()
    dask.update({"tcp://node1:9": 1})
    assert {"in_flight", "done"} <= used("d") <= set(dask.rows({})[0])
    assert used("q") <= set(status["queues"][0])
    assert used("chain") <= set(status["chains"][0])
    assert used("e") <= set(status["events"][0])
    assert status["calls"] == []
    assert used("c") <= set(a_call_that_is_shown("calls"))
    assert status["waits"] == []
    assert used("wait") <= set(a_call_that_is_shown("waits"))
    assert used("reason") <= set(a_call_that_is_shown("waits")["why"][0])
    assert used("x") <= {field.name for field in fields(Snapshot)}


def a_call_that_is_shown(under: str) -> dict[str, Any]:
    recorder = Recorder()
    recorder.join("w", slots=0)
    recorder.submit()
    rows: list[dict[str, Any]] = recorder.scheduler.snapshot(2.0)[under]
    return rows[0]


def used(*names: str) -> set[str]:
    """Return the members that the page's script reads of objects with these names."""
    script = TEXT.partition("<script>")[2]
    found = re.findall(rf"\b(?:{'|'.join(names)})\.([a-z_]+)\b", script)
    assert found
    return set(found)
