"""Selection of GPUs: as SLURM binds them, the driver lists them, or the user names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farm.errors import InvalidInput
from farm.provision.local.devices import cpus_here, devices

TWO = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22222222-bbbb)
"""
CUT = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-c1)
  MIG 3g.20gb     Device  1: (UUID: MIG-c2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-22222222-bbbb)
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called nvidia-smi that prints the file beside it."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -L ] && cat {tmp_path}/listed\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "listed"


def test_slurms_binding_is_respected() -> None:
    bound = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert devices("auto", bound) == devices("per-node", bound) == ("2", "3")
    assert devices("1", bound) == ("3",)
    assert devices("1,0", {"CUDA_VISIBLE_DEVICES": "GPU-a, MIG-b"}) == ("MIG-b", "GPU-a")


def test_without_a_binding_the_driver_is_asked(driver: Path) -> None:
    driver.write_text(TWO)
    assert devices("auto", {}) == ("GPU-11111111-aaaa", "GPU-22222222-bbbb")
    assert devices("1", {}) == ("GPU-22222222-bbbb",)


def test_a_gpu_that_is_cut_is_used_in_its_parts(driver: Path) -> None:
    driver.write_text(CUT)
    assert devices("auto", {}) == ("MIG-c1", "MIG-c2", "GPU-22222222-bbbb")


def test_gpus_may_be_named_where_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert devices("0,3", {}) == ("0", "3")


@pytest.mark.parametrize(
    ("wanted", "bound", "text"),
    [
        ("auto", "", "CUDA_VISIBLE_DEVICES is ''; ask SLURM for GPUs"),
        ("0", "", "gpus=.0. finds no GPU: CUDA_VISIBLE_DEVICES is ''"),
        ("auto", "NoDevFiles", "CUDA_VISIBLE_DEVICES is 'NoDevFiles'; ask SLURM for GPUs"),
        ("1", "3,-1,4", r"names GPU 1; of 1 here \(3\)"),
        ("auto", None, "nvidia-smi is not here or lists none"),
        ("2", "4,5", r"names GPU 2; of 2 here \(4, 5\) the first is 0"),
        ("all", "0", "expected auto, per-node, or positions such as 0,1"),
        ("", "0", "expected auto, per-node, or positions"),
        ("-1", "0", "expected auto, per-node, or positions"),
        ("0,0", "0", "names a GPU twice"),
    ],
)
def test_what_cannot_be_is_said(
    wanted: str, bound: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInput, match=text):
        devices(wanted, {} if bound is None else {"CUDA_VISIBLE_DEVICES": bound})


def test_cpus_are_those_of_the_step_or_of_the_process() -> None:
    assert cpus_here({"SLURM_CPUS_ON_NODE": "12"}) == 12
    assert cpus_here({}) == len(os.sched_getaffinity(0))
    assert cpus_here({"SLURM_CPUS_ON_NODE": "0"}) == len(os.sched_getaffinity(0))
