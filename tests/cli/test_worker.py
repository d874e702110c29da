"""`farm worker`: joins a running farm, drains on a signal, says what cannot be."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import BEAM, FARM, LIMIT_S, Served, environment, run_farm, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "beam.py").write_text(BEAM)
    with serving(tmp_path, "--workers", "0") as farm:
        yield farm


@pytest.fixture
def worker(served: Served) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*FARM, "worker", "beam.py", "--connect", str(served.folder), "-n", "1"],
        cwd=served.folder.parent,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "1 workers ready" in process.stderr.readline()
        yield process
        if process.poll() is None:
            process.terminate()


def workers(served: Served) -> list[dict[str, object]]:
    _, out, _ = run_farm("status", "--json", "--to", str(served.folder), cwd=served.folder)
    found: list[dict[str, object]] = json.loads(out)["workers"]
    return found


def test_a_signal_drains_the_running_call_is_finished(
    served: Served, worker: subprocess.Popen[str]
) -> None:
    config = '{"sleep": 1.5}'
    with subprocess.Popen(
        [*FARM, "call", "1,2,4", "8", "--config", config, "--json", "--to", str(served.folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as caller:
        while not any(w["in_flight"] for w in workers(served)):
            assert caller.poll() is None
        worker.send_signal(signal.SIGTERM)
        answer, _ = caller.communicate(timeout=LIMIT_S)
    assert json.loads(answer)["outputs"] == {"bent": [8.0, 4.0, 2.0]}
    assert worker.wait(LIMIT_S) == 0
    assert workers(served) == []


def test_its_models_log_goes_to_the_run_folder(
    served: Served, worker: subprocess.Popen[str]
) -> None:
    assert list((served.folder / "logs").glob("*.log"))


def test_the_end_of_the_farm_ends_its_workers(
    served: Served, worker: subprocess.Popen[str]
) -> None:
    served.stop()
    assert worker.wait(LIMIT_S) == 0


def test_a_model_that_cannot_be_loaded_is_said(served: Served) -> None:
    folder = served.folder.parent
    (folder / "broken.py").write_text("import no_such_module_here\n")
    status, _, errors = run_farm("worker", "broken.py", "--connect", "run", cwd=folder)
    assert status == 2
    assert "no_such_module_here" in errors
    assert errors.strip().splitlines()[-1].startswith("farm: error: ")
