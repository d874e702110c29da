"""The README's examples run as shown, except for the port; its install stays light."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest

from tests.support.time_limits import scaled

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"(?:^`(\w+\.py)`.*\n\n)?^```(\w+)\n((?:.*\n)*?)^```$", README, re.MULTILINE)
"""File name, language and text of each block; the name if the line above begins with one."""
MODEL, UMBRIDGE, CLIENT, IN_PROGRAM = (text for _, language, text in BLOCKS if language == "python")
INSTALL, SERVE, _, SWEEP = (text for _, language, text in BLOCKS if language == "sh")
SHOWN_ADDRESS = "http://127.0.0.1:4242"
MOST_MIB, MOST_PACKAGES = 430, 36
"""Bounds of the environment that the install line makes, with pip in it, and of its packages."""
LIMIT_S = scaled(50)
TIP = 500.0 * 2.0**4 / (8 * 210e9 * 0.1 * 0.02**3 / 12)


def farm_command(line: str) -> list[str]:
    """Return the words of a shown command; `farm` is the one under test."""
    program, *words = shlex.split(line)
    assert program == "farm"
    return [sys.executable, "-m", "farm", *words]


def numbers_printed(text: str, folder: Path) -> list[float]:
    """Return the numbers that a shown program prints."""
    ended = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, timeout=LIMIT_S, check=True
    )
    return [float(number) for number in re.findall(r"[\d.e-]+", ended.stdout.decode())]


@pytest.mark.slow
def test_the_ten_lines_serve_both_clients(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(MODEL)
    command = shlex.join([*farm_command(SERVE), "--port", "0"])
    with in_background(command, tmp_path, dict(os.environ)) as address:
        (tip,) = numbers_printed(UMBRIDGE.replace(SHOWN_ADDRESS, address), tmp_path)
        tips = numbers_printed(CLIENT.replace(SHOWN_ADDRESS, address), tmp_path)
    assert abs(tip / TIP - 1.0) < 1e-12
    ratios = [tip / TIP for tip in tips]
    assert all(abs(r / e - 1.0) < 1e-6 for r, e in zip(ratios, (8.0, 1.0, 0.064), strict=True))


def test_a_program_serves_its_own_function(tmp_path: Path) -> None:
    (tip,) = numbers_printed(IN_PROGRAM, tmp_path)
    assert abs(tip / TIP - 1.0) < 1e-12


@pytest.mark.slow
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


def disk_use(folder: Path) -> float:
    """Return the disk space that a folder uses, in MiB, as `du -sm` does."""
    files = {(s.st_dev, s.st_ino): s.st_blocks for s in (x.lstat() for x in folder.rglob("*"))}
    return sum(files.values()) * 512 / 2**20


def processor_time_s() -> float:
    """Return the processor time of all processes that this one started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shell(text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run the lines of a shown block in a shell."""
    subprocess.run(["bash", "-euc", text], cwd=folder, env=environment, check=True)


@contextlib.contextmanager
def in_background(text: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a shown `farm serve` for the block, and return the address that it prints."""
    command = ["bash", "-euc", f"exec {text}"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            found = (re.search(r"http://127.0.0.1:\d+", line) for line in server.stdout)
            yield next(address[0] for address in found if address)
        finally:
            server.send_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_blocks_run_in_order_after_the_install_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clone, work = tmp_path / "clone", tmp_path / "work"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "__pycache__", "farm-*"))
    work.mkdir()
    made = clone / "farm-env"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FARM_")}
    environment |= {
        "PATH": f"{made / 'bin'}:{sys.base_prefix}/bin:{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_QUIET": "1",
        "FARM_PORT": "0",
    }
    began_s = processor_time_s()
    shell(INSTALL, clone, environment)
    took_s = processor_time_s() - began_s
    listed = [str(made / "bin" / "python"), "-m", "pip", "list", "--format=freeze"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    packages = {line.partition("==")[0] for line in lines} - {"pip", "setuptools"}
    size = disk_use(made)
    with capfd.disabled():
        print(f"\ninstall: {took_s:.0f} s processor time, {size:.0f} MiB, {len(packages)} packages")
    assert "modelfarm" in packages
    assert size <= MOST_MIB
    assert len(packages) <= MOST_PACKAGES, sorted(packages)

    address = SHOWN_ADDRESS
    with contextlib.ExitStack() as servers:
        for file, language, text in BLOCKS[1:]:
            if file:
                (work / file).write_text(text)
            elif language == "python":
                program = text.replace(SHOWN_ADDRESS, address)
                subprocess.run(["python", "-c", program], cwd=work, env=environment, check=True)
            elif text.startswith("farm serve"):
                address = servers.enter_context(in_background(text, work, environment))
            elif language == "sh":
                shell(text, work, environment)
    with h5py.File(work / "beam.h5") as sweep:
        assert sweep["status"].shape == (256,)
    assert os.path.getsize(work / "beam.html") > 1000
