"""The status page: self-contained in one answer, and consistent with /farm/status."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import farm
from farm.experiment.state.experiment import Snapshot
from farm.server.page import PAGE, POLICY, assembled
from farm.transports.dask.processes import Processes
from tests.support.front_door import front_door
from tests.support.scheduler_recorder import Recorder

TEXT = PAGE.decode()
FOLDER = Path(farm.__file__).parent / "server" / "page"

WATCHED = {"failures", "losses", "clients", "progress"}
"""Parts of the status that only watch. The page shows a farm without them, too."""

WATCHED_OF_WORKERS = {"host", "age_s", "restarts", "running_s", "running", "run_times_s"} | {
    "memory_bytes",
    "processor",
    "failed",
    "trouble",
}


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def double(x: Any) -> Any:
    return 2 * x


def test_the_page_is_served_whole_and_needs_nothing_from_elsewhere() -> None:
    with front_door({"double": double}) as door:
        response = door.ask("GET", "/")
        assert response.data == PAGE
        assert response.headers["content-security-policy"] == POLICY
        head = door.ask("HEAD", "/")
        assert (head.status, head.data) == (200, b"")
        assert head.headers["content-length"] == str(len(PAGE))
    links = re.findall(r"""(?:src|href)=["']([^"']*)""", TEXT)
    assert links
    assert all(link.startswith(("/", "data:")) for link in links)
    assert "@import" not in TEXT
    assert "url(" not in TEXT


def test_every_file_of_the_folder_is_in_the_page() -> None:
    for path in FOLDER.iterdir():
        if path.name != "index.html":
            assert path.read_text() in TEXT, path.name


def test_files_of_the_page_are_short() -> None:
    assert [x.name for x in FOLDER.iterdir() if len(x.read_text().splitlines()) > 500] == []


def test_only_the_styles_and_scripts_of_the_page_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("p { color: red }")
    (tmp_path / "b.js").write_text("alert(1)")
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="a.css"><script src="b.js"></script>'
    )
    page, policy = assembled(tmp_path)
    assert page == "<style>\np { color: red }</style><script>\nalert(1)</script>"
    style, script = (
        base64.b64encode(hashlib.sha256(text).digest()).decode()
        for text in (b"\np { color: red }", b"\nalert(1)")
    )
    assert policy.startswith(
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
    )
    assert "unsafe" not in policy


def test_text_from_the_farm_is_never_markup() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in TEXT


def test_the_page_reads_only_what_the_status_says() -> None:
    with front_door({"double": double}) as door:
        asked = {"name": "double", "input": [[1]]}
        door.ask("POST", "/Evaluate", asked, headers={"Farm-Chain": "chain 1"})
        status = door.ask("GET", "/farm/status").json()
    parts = {"dask", "cluster", "descriptions", "experiments", "restarts"}
    assert used("state") <= {*status, *parts, *WATCHED}
    assert used("cluster") <= {"system", "kinds", "jobs", "problem"}
    assert used("restarted") <= {"count", "reason", "time"}  # those of server/lifecycle.py
    assert used("w", "worker") <= {*status["workers"][0], *WATCHED_OF_WORKERS}
    dask = Processes()
    dask.update({"tcp://node1:9": 1})
    assert {"in_flight", "done"} <= used("d") <= set(dask.rows()[0])
    assert used("q") <= set(status["queues"][0])
    assert used("chain") <= set(status["chains"][0])
    assert used("e") - {"first", "count"} <= set(status["events"][0])
    assert status["calls"] == []
    assert used("call") - {"rank", "client", "chain", "call"} <= set(a_call_that_is_shown("calls"))
    assert status["waits"] == []
    assert used("wait") <= set(a_call_that_is_shown("waits"))
    assert used("reason") <= set(a_call_that_is_shown("waits")["why"][0])
    assert used("x") <= {field.name for field in fields(Snapshot)}


def a_call_that_is_shown(under: str) -> dict[str, Any]:
    recorder = Recorder()
    recorder.join("w", slots=0)
    recorder.submit()
    rows: list[dict[str, Any]] = recorder.scheduler.view.snapshot(2.0)[under]
    return rows[0]


def used(*names: str) -> set[str]:
    """Return the members that the page's scripts read of objects with these names."""
    scripts = "".join(re.findall(r"<script>(.*?)</script>", TEXT, re.DOTALL))
    found = re.findall(rf"(?<![.\w])(?:{'|'.join(names)})\??\.([a-z_]+)\b", scripts)
    assert found
    return set(found)
