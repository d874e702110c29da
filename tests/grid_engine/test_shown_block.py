"""The block of docs/clusters.md for Grid Engine runs as shown, on a real one."""

from __future__ import annotations

import os

import h5py

from tests.grid_engine.cluster import GridCluster
from tests.support import fresh_install
from tests.support.shown_blocks import blocks, text_of
from tests.support.shown_lines import BEAM, LIMIT_S, changed, shell_blocks, until_its_end
from tests.test_readme import TIP

PROJECT = "name physics\noticket 0\nfshare 0\nacl NONE\nxacl NONE\n"


def test_the_block(cluster: GridCluster) -> None:
    folder = cluster.folder / "shown"
    folder.mkdir()
    (folder / "beam.py").write_text(BEAM)
    shown = blocks(text_of("docs/clusters.md"))
    (text,) = (b.text for b in shown if 'system = "grid-engine"' in b.text)
    here = changed(text, ('"all.q" ', '"main.q"'), ("workers = 8 ", "workers = 2 "))
    (folder / "cluster.toml").write_text(here)
    (folder / "project").write_text(PROJECT)
    cluster.run(["qconf", "-Aprj", str(folder / "project")])
    try:
        settings = fresh_install.offline(folder / "dist")
        settings["PATH"] = f"{settings['PATH']}:{os.environ['PATH']}"
        block = fresh_install.with_others(shell_blocks("docs/clusters.md")[-1], folder / "dist")
        variables = ["env", *(f"{k}={v}" for k, v in settings.items()), "FARM_PORT=0"]
        command = [*variables, "bash", "-euc", until_its_end(block)]
        said = cluster.run(command, cwd=folder, timeout_s=LIMIT_S)
    finally:
        cluster.run(["qconf", "-dprj", "physics"])
    assert {"smp", "main.q"} <= set(said.split())
    assert "#$ -N farm-w1" in said
    assert f"= [{TIP:.8f}]" in said
    with h5py.File(folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * 256
    assert cluster.run(["qstat"]) == ""
