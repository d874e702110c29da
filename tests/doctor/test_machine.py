"""Checks of the machine's limits."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.doctor import machine
from farm.doctor.finding import Finding, Weight

Limits = Callable[..., None]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """A function that makes the system report limits, by the names of `resource`."""

    def limit(**values: int) -> None:
        numbers = {getattr(resource, name): value for name, value in values.items()}

        def given(number: int) -> tuple[int, int]:
            value = numbers.get(number, resource.RLIM_INFINITY)
            return value, value

        monkeypatch.setattr(resource, "getrlimit", given)

    return limit


@pytest.mark.parametrize(
    ("check", "limits", "words"),
    [
        (machine.open_files, {"RLIMIT_NOFILE": 1024}, "1024 files"),
        (machine.processes, {"RLIMIT_NPROC": 100}, "100 processes"),
        (machine.time_limits, {"RLIMIT_CPU": 600}, "600 s of processor time"),
        (machine.memory, {"RLIMIT_AS": 2 * 2**30}, "2.0 GiB of addresses"),
    ],
)
def test_a_low_limit_is_a_warning(
    limited: Limits, check: Callable[[], list[Finding]], limits: dict[str, int], words: str
) -> None:
    limited(**limits)
    (found,) = check()
    assert found.weight is Weight.WARNING
    assert words in found.text
    assert found.remedy
    limited()
    assert [each.weight for each in check()] == [Weight.OK]


def test_little_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch, limited: Limits) -> None:
    limited()
    monkeypatch.setattr(machine, "usable_memory", lambda: 2**29)
    (found,) = machine.memory()
    assert found.weight is Weight.WARNING
    assert found.text.startswith("0.5 GiB usable of ")


def test_the_end_of_the_job_is_shown(monkeypatch: pytest.MonkeyPatch, limited: Limits) -> None:
    limited()
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 7200))
    assert [f.weight for f in machine.time_limits()] == [Weight.OK]
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 120))
    (found,) = machine.time_limits()
    assert (found.weight, "ends in 2 min" in found.text) == (Weight.WARNING, True)


def test_clocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine.clock(0.0)[0].weight is Weight.WRONG
    for answer, weight in (("no", Weight.WARNING), ("yes", Weight.OK), ("", Weight.OK)):
        program = tmp_path / "timedatectl"
        program.write_text(f"#!/bin/sh\necho {answer}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert machine.clock()[0].weight is weight


def test_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus()[0].text == "none (no nvidia-smi here)"
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    assert machine.gpus()[0].weight is Weight.WARNING
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100 (UUID: GPU-1234)'\n")
    assert machine.gpus()[0].text == "1: GPU-1234"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpus()[0].weight is Weight.OK


@pytest.mark.parametrize(
    ("programs", "weight", "words"),
    [
        ({}, Weight.OK, "no docker, podman or apptainer here"),
        ({"podman": "exit 1", "singularity": "exit 1"}, Weight.OK, "podman, apptainer"),
        ({"docker": "echo 28.2"}, Weight.OK, "docker"),
        (
            {"docker": "echo Cannot connect to the Docker daemon >&2; exit 1", "podman": ":"},
            Weight.WARNING,
            "docker cannot be used: Cannot connect to the Docker daemon",
        ),
    ],
)
def test_container_runtimes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: dict[str, str],
    weight: Weight,
    words: str,
) -> None:
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.containers()[-1]
    assert (found.weight, found.text) == (weight, words)
    if weight is Weight.WARNING:
        assert "its daemon does not run; start it" in found.remedy
        assert machine.containers()[0].text == "podman"
