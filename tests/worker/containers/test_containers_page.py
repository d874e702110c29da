"""The commands of docs/containers.md run as shown, with stand-ins for docker, podman, apptainer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import farm
from tests.support.running_farm import wait_until
from tests.support.shown_lines import LIMIT_S, going, lines, shell_blocks, terminal_in

RUNTIME = Path(__file__).parents[2] / "support" / "container_runtime"
(BLOCK,) = shell_blocks("docs/containers.md")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands(tmp_path: Path) -> None:
    terminal = terminal_in(tmp_path / "work")
    state = tmp_path / "containers"
    state.mkdir()
    terminal.environment |= {
        "PATH": f"{RUNTIME}:{terminal.environment['PATH']}",
        "FAKE_CONTAINERS": str(state),
        "FAKE_PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
    }
    run = terminal.folder / "farm-run"
    docker, podman, apptainer, worker = lines(BLOCK)

    def serves(client: farm.Client, workers: int) -> None:
        wait_until(lambda: len(client.status()["workers"]) == workers, f"{workers} workers")
        values = client.model("double").map([[float(x)] for x in range(8)])
        assert [float(value[0]) for value in values] == [2.0 * x for x in range(8)]

    def started() -> list[list[str]]:
        return [json.loads(line) for line in (state / "runs").read_text().splitlines()]

    for line, workers in ((podman, 1), (apptainer, 1)):
        with going(terminal, line), farm.connect(run, wait=LIMIT_S) as client:
            serves(client, workers)
    assert [words[-1] for words in started()] == ["IMAGE", "docker://IMAGE"]
    with going(terminal, docker), farm.connect(run, wait=LIMIT_S) as client:
        serves(client, 4)
        terminal.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
        with going(terminal, worker):
            serves(client, 6)
    image = "linusseelinger/benchmark-analytic-gaussian-mixture:latest"
    assert [words[-1] for words in started()[2:]] == [image] * 4 + ["IMAGE"] * 2
    given = [words[words.index("--gpus") + 1] for words in started() if "--gpus" in words]
    assert sorted(given) == ["device=0", "device=1"]
    wait_until(lambda: os.listdir(state) == ["runs"], "the containers to be removed")
