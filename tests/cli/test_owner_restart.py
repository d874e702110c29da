"""`farm restart` of a running farm."""

from __future__ import annotations

from pathlib import Path

import pytest

import farm
from farm.cli import run
from tests.support.dispatcher_farm import BEAM, serving
from tests.support.running_farm import wait_until


@pytest.mark.parametrize("native", [True, False])
def test_another_worker_takes_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], native: bool
) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    with serving(tmp_path, "beam.py") as served, farm.connect(served.folder) as client:
        target = str(served.folder) if native else served.connection.url
        (before,) = client.status()["workers"]
        assert run(["restart", before["name"], "--to", target]) == 0
        assert capsys.readouterr().out == f"{before['name']} is killed and started again\n"

        def replaced() -> bool:
            rows = client.status()["workers"]
            return bool(rows) and rows[0]["name"] != before["name"]

        wait_until(replaced, "another one joins")
        (now,) = client.status()["workers"]
        assert (before["restarts"], now["restarts"]) == (0, 1)


def test_a_thread_has_no_supervisor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def double(x: float) -> float:
        return 2 * x

    with farm.serve(double, dir=tmp_path / "run") as client:
        (row,) = client.status()["workers"]
        assert run(["restart", row["name"], "--to", str(tmp_path / "run")]) == 2
    assert "no supervisor that starts it again" in capsys.readouterr().err
