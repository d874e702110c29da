"""The commands of docs/clusters.md run as shown, with stand-ins for the commands of PBS and Flux.

tests/slurm and tests/grid_engine have the others: those systems run in CI.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

import farm
from tests.provision.stand_ins import flux, pbs
from tests.provision.stand_ins.site import Site
from tests.support import fresh_install
from tests.support.running_farm import wait_until
from tests.support.shown_blocks import blocks, text_of
from tests.support.shown_lines import (
    LIMIT_S,
    POINT,
    changed,
    going,
    lines,
    shell_blocks,
    terminal_in,
    until_its_end,
)
from tests.test_readme import TIP

PAGE = blocks(text_of("docs/clusters.md"))
_, SWEEP, OWN_JOB, _, PBS, FLUX, _ = shell_blocks("docs/clusters.md")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def settings(system: str, *changes: tuple[str, str]) -> str:
    """Return the file of a system on the page, for one machine."""
    (shown,) = [b.text for b in PAGE if f'system = "{system}"' in b.text]
    return 'host = "127.0.0.1"\n' + changed(shown, ("workers = 8 ", "workers = 2 "), *changes)


def status_of(sweep: Path) -> list[int]:
    with h5py.File(sweep) as file:
        found: list[int] = file["status"][:].tolist()
    return found


@pytest.mark.parametrize(
    ("block", "system", "install"),
    [(PBS, "pbs", pbs.install), (FLUX, "flux", flux.install)],
    ids=["pbs", "flux"],
)
def test_an_elastic_farm(
    tmp_path: Path, block: str, system: str, install: Callable[[Path], Path]
) -> None:
    terminal = terminal_in(tmp_path / "work")
    (terminal.folder / "cluster.toml").write_text(settings(system))
    path = terminal.environment["PATH"]
    if fresh_install.LINE in block:
        terminal.environment |= fresh_install.offline(tmp_path / "dist")
        path = terminal.environment["PATH"]
        block = fresh_install.with_others(block, tmp_path / "dist")
    commands = install(tmp_path / "commands")
    terminal.environment["PATH"] = f"{commands}:{path}"
    printed = terminal.type(until_its_end(block))
    assert {"pbs": "workq ", "flux": "STATE NNODES"}[system] in printed
    assert {"pbs": "#PBS -N farm-w1", "flux": "#flux: --job-name=farm-w1"}[system] in printed
    assert f"= [{TIP:.8f}]" in printed
    assert status_of(terminal.folder / "s.h5") == [1] * 256
    jobs = Site(commands).jobs().values()
    assert jobs
    assert {(job["state"], job["code"]) for job in jobs} == {("ended", 0)}


def test_one_line_in_a_job_and_again(tmp_path: Path) -> None:
    terminal = terminal_in(tmp_path / "work")
    line = changed(SWEEP, ("--workers 16", "--workers 2"))
    terminal.type(line)
    assert status_of(terminal.folder / "s.h5") == [1] * 256
    before = (terminal.folder / "s.h5").read_bytes()
    terminal.type(line)
    assert (terminal.folder / "s.h5").read_bytes() == before


def test_workers_in_a_job_of_your_own(tmp_path: Path) -> None:
    terminal = terminal_in(tmp_path / "work")
    serve, worker = lines(OWN_JOB)
    run = terminal.folder / "run"
    with going(terminal, serve), farm.connect(run, wait=LIMIT_S) as client:
        with going(terminal, changed(worker, ("--cpus 4", "--cpus 1 -n 1"))):
            wait_until(lambda: client.status()["workers"], "the worker")
            assert abs(client.model("Beam")(POINT)[0] / TIP - 1.0) < 1e-12
            assert 3000 < client.status()["workers"][0]["ends_in_s"] <= 3600
        wait_until(lambda: not client.status()["workers"], "the worker to leave")
