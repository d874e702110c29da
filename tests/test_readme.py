"""The README's examples run as shown, except for the port and the run folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from tests.support.time_limits import scaled

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
MODEL, UMBRIDGE, CLIENT, IN_PROGRAM = (text for language, text in BLOCKS if language == "python")
SERVE, SWEEP, EXPERIMENT = (text for language, text in BLOCKS if language == "sh")
(CONFIG,) = (text for language, text in BLOCKS if language == "ini")
LIMIT_S = scaled(50)
TIP = 500.0 * 2.0**4 / (8 * 210e9 * 0.1 * 0.02**3 / 12)


def farm_command(line: str) -> list[str]:
    """Return the words of a shown command; `farm` is the one under test."""
    program, *words = shlex.split(line)
    assert program == "farm"
    return [sys.executable, "-m", "farm", *words]


def output_of(text: str, folder: Path) -> str:
    """Return the output of a shown program."""
    ended = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, timeout=LIMIT_S, check=True
    )
    return ended.stdout.decode()


def test_the_ten_lines_serve_both_clients(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(MODEL)
    command = [*farm_command(SERVE), "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(
                found[0]
                for line in server.stdout
                if (found := re.search(r"http://127.0.0.1:\d+", line))
            )
            shown = "http://127.0.0.1:4242"
            (tip,) = re.findall(r"[\d.e-]+", output_of(UMBRIDGE.replace(shown, address), tmp_path))
            tips = re.findall(r"[\d.e-]+", output_of(CLIENT.replace(shown, address), tmp_path))
        finally:
            server.send_signal(signal.SIGTERM)
    assert abs(float(tip) / TIP - 1.0) < 1e-12
    ratios = [float(text) / TIP for text in tips]
    assert all(abs(r / e - 1.0) < 1e-6 for r, e in zip(ratios, (8.0, 1.0, 0.064), strict=True))


def test_a_program_serves_its_own_function(tmp_path: Path) -> None:
    assert abs(float(output_of(IN_PROGRAM, tmp_path)) / TIP - 1.0) < 1e-12


def test_the_sweep_and_its_report(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(MODEL)
    for line in SWEEP.splitlines():
        subprocess.run(
            farm_command(line), cwd=tmp_path, timeout=LIMIT_S, check=True, stdin=subprocess.DEVNULL
        )
    with h5py.File(tmp_path / "beam.h5") as file:
        load, thickness = file["theta"][:].T
        expected = TIP * load / 500.0 * (0.02 / thickness) ** 3
        assert abs(file["out_0"][:, 0] / expected - 1.0).max() < 1e-12
    assert os.path.getsize(tmp_path / "beam.html") > 1000


@pytest.mark.slow
def test_the_experiment_finds_the_thickness(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(MODEL)
    (tmp_path / "tune.ini").write_text(CONFIG)
    for line in EXPERIMENT.splitlines():
        subprocess.run(
            farm_command(line), cwd=tmp_path, timeout=LIMIT_S, check=True, stdin=subprocess.DEVNULL
        )
    best = [*farm_command("farm experiment best tune.db --json")]
    found = json.loads(subprocess.run(best, cwd=tmp_path, capture_output=True, check=True).stdout)
    expected = 0.02 * (TIP / 0.05) ** (1 / 3)
    assert abs(found["told"]["point"]["thickness"] / expected - 1.0) < 0.03
    assert os.path.getsize(tmp_path / "tune.html") > 1000
