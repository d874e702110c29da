"""A model process started by hand: its status line, signals, and its end without a supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from farm.provision.local.process import EXIT_NOT_LOADED, Watch, parsed
from farm.worker.host.host import EXIT_ORPHANED
from tests.support.running_farm import LIMIT_S, Farm, wait_until
from tests.test_farm import HEAVY

Started = subprocess.Popen[str]
Start = Callable[..., Started]


@pytest.fixture
def start(farm: Farm) -> Iterator[Start]:
    processes: list[Started] = []

    def start(model: str, *words: str, pass_fds: Sequence[int] = ()) -> Started:
        command = [sys.executable, "-u", "-m", "farm.provision.local.process", model]
        process = subprocess.Popen(
            [*command, "--connect", str(farm.connect), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
            process_group=0,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


MODULES = """
import sys
import farm
import numpy as np

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def same(x):
    print(*sys.modules, flush=True)
    return x
"""


def test_a_worker_imports_little_besides_numpy_until_its_first_call(
    farm: Farm, start: Start, tmp_path: Path
) -> None:
    model = tmp_path / "same.py"
    model.write_text(MODULES)
    process = start(str(model))
    farm.wait_for_workers(1)
    assert farm.call("same", 1) == 1
    assert process.stdout is not None
    found = set(process.stdout.readline().split())
    assert "numpy" in found
    assert found & HEAVY <= {"tempfile"}, "the loader of modules uses it in Python 3.11"
    ours = {name.split(".")[1] for name in found if name.startswith("farm.")}
    assert ours.isdisjoint({"settings", "cli", "client", "server", "http", "sweep", "dispatcher"})


SIGNAL_AT_THE_VERY_END = """
import ctypes, signal
import farm
libc = ctypes.CDLL(None)
# kill(exit status 0, SIGTERM), when Python has ended and C functions are called: to this group.
libc.on_exit(libc.kill, ctypes.c_void_p(signal.SIGTERM))

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def same(x):
    return x
"""


@pytest.mark.skipif(sys.platform != "linux", reason="on_exit is glibc's")
def test_a_signal_while_it_ends_is_no_death(farm: Farm, start: Start, tmp_path: Path) -> None:
    """As a second SIGTERM that follows the first, which an idle worker obeys at once."""
    model = tmp_path / "same.py"
    model.write_text(SIGNAL_AT_THE_VERY_END)
    process = start(str(model))
    farm.wait_for_workers(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


def status_of(start: Start, model: str, *words: str) -> tuple[Started, list[dict[str, Any]]]:
    """Return the ended process and all its messages to the supervisor."""
    read_end, write_end = os.pipe()
    process = start(model, "--status", str(write_end), *words, pass_fds=[write_end])
    os.close(write_end)
    process.wait(LIMIT_S)
    with os.fdopen(read_end) as lines:
        return process, [json.loads(line) for line in lines]


def test_without_any_descriptor_it_serves_and_drains(
    farm: Farm, start: Start, models: Path
) -> None:
    process = start(f"{models}:double", "--device", "3")
    farm.wait_for_workers(1)
    assert farm.call("double", 4) == 8
    (row,) = farm.snapshot()["workers"]
    assert (row["pid"], row["device"]) == (process.pid, "3")
    process.send_signal(signal.SIGINT)
    assert farm.call("double", 4) == 8, "Ctrl-C is the supervisor's business"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert farm.losses() == []


@pytest.mark.slow
def test_the_drain_is_heard_while_the_model_is_in_c_code(
    farm: Farm, start: Start, models: Path, tmp_path: Path
) -> None:
    process = start(f"{models}:compute")
    farm.wait_for_workers(1)
    call = farm.submit("compute", 5)
    wait_until((tmp_path / "sleeping").exists, "the model has begun")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: farm.snapshot()["workers"][0]["slots"] == 0, "the drain is heard")
    assert not call.done()
    assert call.result(LIMIT_S).outputs[0][0] == 5
    assert process.wait(LIMIT_S) == 0


NEEDY = """
import farm
class Needy(farm.Model):
    def describe(self, config): return {"x": config["n"]}, {"y": 1}
    def evaluate(self, inputs, config): return [1]
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", "ZeroDivisionError"),
        (NEEDY, "'Needy' cannot describe itself for the empty config: KeyError: 'n'"),
    ],
    ids=["load", "describe"],
)
def test_an_error_in_the_models_is_one_status_line_and_a_traceback(
    start: Start, models: Path, text: str, error: str
) -> None:
    models.write_text(text)
    process, said = status_of(start, str(models))
    assert process.returncode == EXIT_NOT_LOADED
    (line,) = said
    assert error in line["error"]
    assert process.stderr is not None
    assert "Traceback" in process.stderr.read()


def test_no_connection_file(farm: Farm, start: Start, models: Path) -> None:
    farm.connect.with_name("workers.json").unlink()
    process, said = status_of(start, f"{models}:double")
    assert process.returncode == EXIT_ORPHANED
    assert said == []
    assert process.stderr is not None
    assert "no connection file" in process.stderr.read()


def test_asked_to_end_while_it_loads(start: Start, models: Path, tmp_path: Path) -> None:
    """It ends at once and without a goodbye, so another one takes its place."""
    loading = f"open({str(tmp_path / 'loading')!r}, 'w')"
    models.write_text(f"import time\n{loading}\ntime.sleep(1000)\n{models.read_text()}")
    process = start(f"{models}:double")
    wait_until((tmp_path / "loading").exists, "the models are loading")
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM


def test_it_ends_with_its_supervisor(
    farm: Farm, start: Start, models: Path, tmp_path: Path
) -> None:
    """Only the pipe ends, as where the kernel does not kill; noticed once Python can run."""
    read_end, write_end = os.pipe()
    process = start(f"{models}:hold", "--lifeline", str(read_end), pass_fds=[read_end])
    os.close(read_end)
    farm.wait_for_workers(1)
    call = farm.submit("hold", 1)
    wait_until((tmp_path / "sleeping").exists, "the model has begun")
    os.close(write_end)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    call.cancel()


def test_programs_that_a_model_starts_inherit_nothing(
    farm: Farm, start: Start, models: Path, tmp_path: Path
) -> None:
    models.write_text(
        "import farm, subprocess\n"
        "@farm.model(inputs={'x': 1}, outputs={'y': 1})\n"
        "def count(x):\n"
        "    command = 'ls /proc/self/fd; trap'\n"
        "    found = subprocess.run(['sh', '-c', command], close_fds=False, capture_output=True)\n"
        "    return len(found.stdout.split())\n"
    )
    read_end, write_end = os.pipe()
    start(str(models), "--lifeline", str(read_end), pass_fds=[read_end])
    farm.wait_for_workers(1)
    assert farm.call("count", 0) == 4, "the three standard ones, and that of ls itself"
    os.close(read_end)
    os.close(write_end)


def test_the_command_line() -> None:
    arguments = parsed(["a.py", "b.py", "--connect", "farm.json", "--ends-at", "12.5"])
    assert arguments.models == ["a.py", "b.py"]
    assert (arguments.ends_at, arguments.lifeline) == (12.5, None)


def test_a_drain_asked_for_before_there_is_anything_to_drain() -> None:
    watch = Watch(None)
    drained: list[str] = []
    watch.ask_to_drain()
    watch.call_on_drain(lambda: drained.append("late"))
    watch.ask_to_drain()
    assert drained == ["late"]
    other = Watch(None)
    other.call_on_drain(lambda: drained.append("once"))
    other.ask_to_drain()
    other.ask_to_drain()
    other.call_on_drain(None)
    assert drained == ["late", "once"]
