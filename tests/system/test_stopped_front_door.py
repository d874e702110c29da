"""A front door that is suspended for longer than every time limit, and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import farm
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.dispatcher_farm import serving

MODEL = """
import time
from pathlib import Path
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def sleep(x):
    "Sleeps for x seconds, once it has left a mark that it began."
    (Path(__file__).parent / f"began-{x[0]:g}").touch()
    time.sleep(x[0])
    return x
"""

LOST_AFTER_S, HEARTBEAT_S, STOPPED_S = 1.0, 0.5, 8.0
"""A worker's own heartbeat is 5 s, so its connection breaks before the front door resumes."""


@contextmanager
def remote_worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a model process without a supervisor of the farm, and with a short time limit."""
    words = [sys.executable, "-m", "farm.provision.local.process", "model.py", "--connect", "run"]
    words += ["--lost-after", str(LOST_AFTER_S)]
    with subprocess.Popen(words, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("transport", ["auto", pytest.param("zmq", marks=pytest.mark.slow)])
def test_every_call_is_answered_once_and_nothing_has_ended(tmp_path: Path, transport: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "farm.toml").write_text(
        f'heartbeat_s = {HEARTBEAT_S}\ntransport = "{transport}"\ngrace_s = 1.0\n'
    )
    options = ["model.py", "--config", "farm.toml", "--workers", "1"]
    with serving(tmp_path, *options) as served, remote_worker(tmp_path) as remote:
        served.wait_for_workers(2)
        processes = psutil.Process(served.process.pid).children()
        with farm.connect(served.folder) as client:
            sleep = client.model("sleep")
            # Two calls end while the front door is suspended, two afterwards; the others wait.
            times_s = [STOPPED_S / 2, STOPPED_S / 2 + 0.25, *(0.01 * k for k in range(20))]
            calls = [sleep.submit([x]) for x in times_s]
            for x in times_s[:2]:
                wait_until((tmp_path / f"began-{x:g}").exists)
            served.process.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)  # the elapsed time is what is tested
            served.process.send_signal(signal.SIGCONT)
            answers = [float(call.result(LIMIT_S)[0]) for call in calls]
            assert answers == times_s
            status = client.status()
        assert [event["text"] for event in status["events"] if event["event"] == "lost"] == []
        assert len(status["workers"]) == 2
        assert remote.poll() is None
        assert served.process.poll() is None
        assert psutil.Process(served.process.pid).children() == processes
