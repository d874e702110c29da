"""The front door's process from start to end: signals, and output that cannot be written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import farm
from farm.errors import Unavailable
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
        while "Ctrl-C again" not in (said := served.process.stderr.readline()):
            assert said.startswith("waiting for "), "a slow start says so"
        status, _, errors = served.stop(signal.SIGINT)
        assert (status, errors) == (0, ""), "an orderly end is no loss"
        assert isinstance(call.exception(LIMIT_S), Unavailable)


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


@pytest.mark.slow
def test_the_terminal_says_what_the_farm_waits_for(tmp_path: Path) -> None:
    gate = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    (tmp_path / "beam.py").write_text(gate + BEAM)
    with serving(tmp_path, "beam.py", cold=True) as served:
        out, errors = served.process.stdout, served.process.stderr
        assert out is not None
        assert errors is not None
        assert out.readline() == f"farm serves no model yet at {served.connection.url}\n"
        assert out.readline().startswith("connection file ")
        pattern = r"waiting for (.*) s: the farm waits for its first worker, which loads beam.py\n"
        waits = [re.fullmatch(pattern, errors.readline()) for _ in range(2)]
        first_s, second_s = (float(wait[1]) for wait in waits if wait is not None)
        assert first_s < second_s
        (tmp_path / "go").touch()
        assert out.readline() == f"farm serves beam at {served.connection.url}\n"
        status, _, said = served.stop()
        assert (status, said) == (0, "farm stops; Ctrl-C again to hurry\n")


def test_a_farm_that_still_loads_its_models_stops_in_order(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text("import time\ntime.sleep(600)\n")
    with serving(tmp_path, "beam.py", cold=True) as served:
        status, _, errors = served.stop()
        assert (status, errors) == (0, "farm stops; Ctrl-C again to hurry\n")


def test_a_closed_terminal_ends_a_farm_in_order_but_not_under_nohup(tmp_path: Path) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # this may run under nohup
    try:
        with serving(tmp_path, "beam.py") as served:
            status, _, errors = served.stop(signal.SIGHUP)
        assert (status, "Traceback" in errors) == (0, False)
        assert not (tmp_path / "run" / "farm.json").exists()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits that it is ignored
        with serving(tmp_path, "beam.py") as served:
            told = Path(f"/proc/{served.process.pid}/status").read_text()
            ignored = int(told.split("SigIgn:")[1].split()[0], 16)
            assert ignored & (1 << (signal.SIGHUP - 1))
            served.process.send_signal(signal.SIGHUP)
            with farm.connect(served.folder) as client:
                assert client.models() == ["beam"]
            assert served.stop()[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)
