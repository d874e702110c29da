"""The front door's process from start to end: signals, and output that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import farm
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, FARM, LIMIT_S, Served, environment, serving


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    begun = tmp_path / "begun"
    with serving(tmp_path, "beam.py") as served, farm.connect(served.folder, wait=1.0) as client:
        call = client.model("beam").submit(
            [[1.0, 2.0, 4.0], [8.0]], config={"begun": str(begun), "sleep": 600}
        )
        wait_until(begun.exists)
        served.process.send_signal(signal.SIGINT)
        assert served.process.stderr is not None
        assert "Ctrl-C again" in served.process.stderr.readline()
        assert served.stop()[0] == 0
        assert call.exception(LIMIT_S) is not None


def test_a_farm_serves_although_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [*FARM, "serve", "beam.py", "--port", "0", "--dir", "run"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=write_end, stderr=write_end, text=True
    ) as process:
        os.close(write_end)
        try:
            served = Served(process, tmp_path / "run")
            served.wait_for_workers(1)
            with farm.connect(served.folder) as client:
                assert client.model("beam")([[1.0, 2.0, 4.0], [8.0]]).tolist() == [8.0, 4.0, 2.0]
            process.terminate()
            process.wait(LIMIT_S)
            assert not (served.folder / "farm.json").exists()
        finally:
            process.kill()
