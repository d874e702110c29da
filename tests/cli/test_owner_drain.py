"""`farm drain` of a running farm."""

from __future__ import annotations

from pathlib import Path

import pytest

import farm
from farm.cli import run
from tests.support.dispatcher_farm import BEAM, serving
from tests.support.running_farm import wait_until


@pytest.mark.parametrize("native", [True, False])
def test_a_worker_leaves_and_no_other_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], native: bool
) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    with serving(tmp_path, "beam.py", "--workers", "2") as served:
        served.wait_for_workers(2)
        target = str(served.folder) if native else served.connection.url
        with farm.connect(served.folder) as client:
            first = client.status()["workers"][0]["name"]
            assert run(["drain", first, "--to", target]) == 0
            assert capsys.readouterr().out == f"{first} finishes its calls and leaves\n"
            wait_until(lambda: len(client.status()["workers"]) == 1, "it leaves")
            events = [(e["event"], e["worker"]) for e in client.status()["events"]]
            assert ("left", first) in events
        assert run(["drain", first, "--to", target]) == 2
        assert f"worker {first} has left" in capsys.readouterr().err
