"""The process that describes models before a worker has loaded them."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
import uvloop

from farm.call import Operation
from farm.errors import Unavailable
from farm.provision.local.describing import describe
from tests.support.ended import has_ended
from tests.support.running_farm import wait_until

MODEL = """
import farm

print("a model may print")

class Double(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 1}
    max_batch = 8

    def evaluate(self, inputs, config):
        return inputs["x"].sum()

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return [sens[0], sens[0]]
"""


def written(folder: Path, text: str) -> str:
    path = folder / "model.py"
    path.write_text(text)
    return str(path)


def test_models_are_described_as_a_worker_describes_them(tmp_path: Path) -> None:
    double, other = uvloop.run(
        describe([f"{written(tmp_path, MODEL)}:Double", f"other={tmp_path / 'model.py'}"])
    )
    assert (double.name, other.name) == ("Double", "other")
    assert [(t.name, t.shape) for t in double.inputs] == [("x", (2,))]
    assert double.max_batch == 8
    assert double.operations == {Operation.EVALUATE, Operation.GRADIENT}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import nosuch", "No module named 'nosuch'"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_models_that_do_not_load_give_the_reason(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(Unavailable, match=expected):
        uvloop.run(describe([written(tmp_path, text)]))


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_model_that_loads_for_ever_is_killed_with_what_it_started(
    tmp_path: Path, *, cancelled: bool
) -> None:
    """By its caller, or with all other tasks at the end of the event loop."""
    pids = tmp_path / "pids"
    text = f"""
import os, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
with open({str(pids)!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}} ")
time.sleep(1000)
"""

    async def ended_once_it_loads() -> None:
        task = asyncio.create_task(describe([written(tmp_path, text)]))
        await asyncio.to_thread(
            wait_until, lambda: pids.exists() and pids.read_text().endswith(" "), "a load"
        )
        if cancelled:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    uvloop.run(ended_once_it_loads())
    loading = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: all(map(has_ended, loading)), "the end of both processes")
    gc.collect()  # an open socket would be an error


def test_a_process_that_a_model_forks_delays_nothing(tmp_path: Path) -> None:
    text = "import os, time\nif os.fork() == 0: time.sleep(1000)\n" + MODEL
    (double,) = uvloop.run(describe([written(tmp_path, text)]))
    assert double.name == "Double"


def test_loading_has_a_limit(tmp_path: Path) -> None:
    text = "import time; time.sleep(1000)"
    with pytest.raises(Unavailable, match=r"more than 0\.2 s"):
        uvloop.run(describe([written(tmp_path, text)], limit_s=0.2))
