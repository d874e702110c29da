"""A front door that is suspended: for longer than every time limit, and for ever over HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

import farm
from farm.errors import DeadlineExceeded, Unavailable
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.dispatcher_farm import Served, serving
from tests.support.time_limits import scaled

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

HTTP_MODELS = """
import time
from pathlib import Path
import farm

def run(x, config):
    with (Path(__file__).parent / "runs").open("a") as runs:
        print(x[0], file=runs, flush=True)
    time.sleep(config.get("sleep_s", 0.0))
    return 2 * x

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def twice(x, config):
    return run(x, config)

@farm.model(inputs={"x": 1}, outputs={"y": 1}, repeatable=False)
def once(x, config):
    return run(x, config)
"""

FOR_EVER = {"sleep_s": 1000.0}
PATIENCE_S = scaled(3.0)

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


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "zmq"])
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


# Over HTTP


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "model.py").write_text(HTTP_MODELS)
    (tmp_path / "farm.toml").write_text("grace_s = 0.5\n")
    models = ["model.py:twice", "model.py:once"]
    with serving(tmp_path, *models, "--config", "farm.toml", "--workers", "6") as served:
        served.wait_for_workers(6)
        yield served


def runs(folder: Path) -> list[float]:
    """Return the points that the models began to run."""
    file = folder / "runs"
    return [float(line) for line in file.read_text().split()] if file.exists() else []


@contextmanager
def stopped(served: Served) -> Iterator[None]:
    """Suspend the front door within the block."""
    served.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        served.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_over_http_what_is_open_fails_when_the_patience_ends(
    tmp_path: Path, served: Served
) -> None:
    url = served.connection.url
    with (
        ThreadPoolExecutor() as threads,
        farm.connect(url, wait=PATIENCE_S) as client,
        farm.connect(url, wait=PATIENCE_S, deadline_s=0.7 * PATIENCE_S) as late,
    ):
        twice, once = client.model("twice"), client.model("once")
        calls = [twice.submit([1.0], FOR_EVER), once.submit([2.0], FOR_EVER)]
        last = late.model("once").submit([3.0], FOR_EVER)
        points = [np.array([4.0]), np.array([5.0])]
        streamed = threads.submit(list, twice.as_completed(points, FOR_EVER, return_errors=True))
        wait_until(lambda: len(runs(tmp_path)) == 5)
        with stopped(served):
            questions: list[Callable[[], object]] = [
                client.status,
                client.models,
                lambda: client.model("twice"),
                lambda: once.describe({"other": 1}),
                lambda: farm.connect(url, wait=PATIENCE_S),
            ]
            asked = [threads.submit(question) for question in questions]
            errors = [future.exception(LIMIT_S) for future in [*calls, *asked]]
            errors += [error for _, error in streamed.result(LIMIT_S)]
            assert [type(error) for error in errors] == [Unavailable] * 9
            assert {str(error).split(" for ")[0] for error in errors} == {
                f"no word from the server at {url}"
            }
            assert isinstance(last.exception(LIMIT_S), DeadlineExceeded)
        assert float(twice([6.0])[0]) == 12.0
    assert sorted(runs(tmp_path)) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.slow
def test_over_http_a_farm_that_continues_in_time_answers_every_call_once(
    tmp_path: Path, served: Served
) -> None:
    with farm.connect(served.connection.url, wait=scaled(12.0)) as client:
        twice, once = client.model("twice"), client.model("once")
        with ThreadPoolExecutor() as threads:
            short = {"sleep_s": 0.5}
            calls = [twice.submit([0.0], short), once.submit([1.0], short)]
            points = np.arange(2.0, 30.0)[:, None]
            mapped = threads.submit(twice.map, points, short)
            wait_until(lambda: len(runs(tmp_path)) >= 4)
            with stopped(served):
                described = threads.submit(once.describe, {"other": 1})
                time.sleep(5.0)  # the client asks after 2 s
            assert [float(call.result(LIMIT_S)[0]) for call in calls] == [0.0, 2.0]
            assert mapped.result(LIMIT_S).tolist() == (2 * points).tolist()
            assert described.result(LIMIT_S)
    assert sorted(runs(tmp_path)) == [float(k) for k in range(30)]


@pytest.mark.slow
def test_over_http_a_model_may_run_for_longer_than_the_patience(served: Served) -> None:
    patience_s = scaled(1.0)
    with farm.connect(served.connection.url, wait=patience_s) as client:
        model = client.model("once")
        assert float(model([1.0], {"sleep_s": 3 * patience_s})[0]) == 2.0


FORKS = """
import os, sys
import farm

client = farm.connect(sys.argv[1], wait=float(sys.argv[2]))
model = client.model("twice")
first = model.submit([1.0], {"sleep_s": 1000.0})
child = os.fork()
call = model.submit([2.0], {"sleep_s": 1000.0}) if child == 0 else first
print(type(call.exception()).__name__, flush=True)
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.slow
def test_over_http_a_forked_process_gives_up_too(tmp_path: Path, served: Served) -> None:
    words = [sys.executable, "-c", FORKS, served.connection.url, str(PATIENCE_S)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        try:
            wait_until(lambda: sorted(runs(tmp_path)) == [1.0, 2.0])
            with stopped(served):
                output, _ = program.communicate(timeout=LIMIT_S)
        finally:
            program.kill()
    assert output.split() == ["Unavailable", "Unavailable"]
    assert program.returncode == 0
