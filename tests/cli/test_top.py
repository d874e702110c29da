"""`farm top`: its view fits into the terminal, and it leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from typing import Any

import pytest

from farm.cli import run
from farm.cli.top import state_of, view
from tests.cli.conftest import rendered
from tests.support.dispatcher_farm import FARM, LIMIT_S, Served, environment


def shown(state: dict[str, Any], *, height: int = 50, width: int = 160) -> str:
    """Return what a terminal of this size shows."""
    return rendered(view(state, height), width=width, height=height)


def worker(number: int, **more: Any) -> dict[str, Any]:
    """Return a worker's row of a snapshot."""
    row = {"name": f"n{number}/1", "host": f"n{number % 20}", "phase": "open", "in_flight": 0}
    return {**row, "running_s": None, "done": number, "device": "", **more}


QUEUE = {"model": "beam", "operation": "evaluate", "queued": 7, "in_flight": 3, "done": 40}
FAILURE = {"kind": "ModelFailed", "model": "beam", "count": 31, "text": "boom"}
LOSS = {"cause": "crash", "count": 5, "worker": "n7/1", "text": "exit code 3"}
CLIENT = {"queued": 1, "running": 2, "calls_per_s": 3.5}
SWEEP = {"kind": "sweep", "name": "beam", "done": 5, "total": 9, "failed": 1, "ends_in_s": 60.0}
JOB = {"kind": "big", "phase": "pending", "state": "PENDING", "reason": "Resources"}


def full() -> dict[str, Any]:
    """Return the snapshot of a large farm in which much has just happened."""
    return {
        "up_s": 100.0,
        "calls_per_s": 12.5,
        "done": 40,
        "failed": 2,
        "workers": [worker(i) for i in range(1000)],
        "queues": [{**QUEUE, "failed": 2, "run_time_p50_s": 0.5, "run_time_p95_s": 2.5}] * 9,
        "failures": [{**FAILURE, "last": time.time()}] * 9,
        "losses": [{**LOSS, "last": time.time()}] * 9,
        "clients": [{**CLIENT, "client": f"c{i}", "share": i / 100} for i in range(9)],
        "progress": [SWEEP] * 9,
        "cluster": {
            "system": "SLURM",
            "problem": "",
            "kinds": [{"name": "big", "problem": "refused: no account"}],
            "jobs": [{**JOB, "id": str(i)} for i in range(12)],
        },
    }


@pytest.mark.parametrize("height", [12, 24, 50, 100])
def test_a_large_farm_fits_into_the_terminal(height: int) -> None:
    lines = shown(full(), height=height).splitlines()
    assert len(lines) <= height
    assert "workers: 1000 (1000 idle)   hosts: 20" in lines[0]
    assert re.fullmatch(r" and 9\d\d more *", lines[-1])
    assert all(len(line) <= 160 for line in lines)


def test_each_part_is_shown() -> None:
    text = shown(full())
    assert re.search(r"queued: 63 +running: 27 +done: 40 +failed: 2 +12.5 calls/s", text)
    assert re.search(r"beam +evaluate +7 +3 +40 +2 +500 ms +2.5 s", text)
    assert re.search(r"ModelFailed +beam +31 +\S+ \S+ +boom", text)
    assert re.search(r"crash +5 +\S+ \S+ +n7/1 +exit code 3", text)
    assert re.search(r"client +share.*\nc8 +8.0% +1 +2 .*3.5", text)
    assert re.search(r"sweep +beam +5 +9 +1 +0 +60 s", text)
    assert re.search(r"big +problem +refused: no account", text)
    assert re.search(r"big +pending +PENDING +12 +Resources", text)


def test_a_farm_that_reports_little_is_shown() -> None:
    text = shown({})
    assert "workers: 0 (none)" in text
    assert "queued: 0" in text
    assert "failures" not in text


def test_the_longest_running_call_comes_first() -> None:
    running = {"model": "beam", "operation": "evaluate", "client": "ann"}
    rows = [
        worker(1, in_flight=1, running_s=2.0),
        worker(2, in_flight=1, running_s=90.0, running=running, processor=0.97, restarts=2),
        worker(3, phase="draining"),
    ]
    text = shown({"workers": rows})
    assert "workers: 3 (2 busy, 1 draining)" in text
    first, second, third = [line for line in text.splitlines() if "/1" in line]
    assert re.search(r"n2/1 +busy +cpu +90 s +2 +0.97 +2 +beam evaluate of ann", first)
    assert re.search(r"n1/1 +busy +cpu +2 s", second)
    assert re.search(r"n3/1 +draining", third)


def test_the_states_of_workers() -> None:
    assert [state_of(worker(1, in_flight=n)) for n in (0, 2)] == ["idle", "busy"]
    assert state_of(worker(1, phase="draining", in_flight=1)) == "draining"
    assert state_of({}) == "idle"


def test_texts_from_clients_change_nothing_on_the_terminal() -> None:
    evil = "\x1b[31mred\x07 [bold]x[/bold]\u202e\nnext"
    state = {
        "workers": [worker(1, name=evil, phase=evil, running={"model": evil, "client": evil})],
        "queues": [{**QUEUE, "model": evil}],
        "failures": [{"kind": evil, "text": evil}],
        "losses": [{"cause": evil, "text": evil}],
        "clients": [{"client": evil}],
        "progress": [{"name": evil, "kind": evil}],
        "cluster": {"system": evil, "problem": evil, "jobs": [{"kind": evil}], "kinds": []},
    }
    text = shown(state, width=400)
    assert not set("\x1b\x07\u202e") & set(text)
    assert text.count("[bold]x[/bold]") >= 7
    assert "\nnext" not in text


def test_without_a_terminal_one_snapshot_is_printed(
    capsys: pytest.CaptureFixture[str], beam_farm: Served
) -> None:
    beam_farm.wait_for_workers(2)
    assert run(["top", str(beam_farm.folder)]) == 0
    out = capsys.readouterr().out
    assert "workers: 2 (2 idle)" in out
    assert "\x1b" not in out


@pytest.mark.slow
@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_the_terminal_is_left_as_it_was(beam_farm: Served, how: str) -> None:
    beam_farm.wait_for_workers(2)
    child, terminal = pty.fork()
    if not child:  # in the terminal
        os.chdir(beam_farm.folder.parent)
        os.environ.clear()
        os.environ.update(environment_of_a_terminal())
        os.execv(FARM[0], [*FARM, "top", "run", "--every", "0.1"])
    try:
        until(terminal, b"2 idle")
        if how == "Ctrl-C":
            os.write(terminal, b"\x03")
        else:
            os.kill(child, signal.SIGTERM)
        last = until(terminal, b"\x1b[?1049l")
        assert last.index(b"\x1b[?25h") < last.index(b"\x1b[?1049l")  # the cursor is back
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        os.close(terminal)


def environment_of_a_terminal() -> dict[str, str]:
    return {**environment(), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}


def until(terminal: int, words: bytes) -> bytes:
    """Return what a terminal shows until these words come."""
    found = b""
    limit = time.monotonic() + LIMIT_S
    while words not in found:
        assert time.monotonic() < limit, found
        if select.select([terminal], [], [], 0.1)[0]:
            found += os.read(terminal, 65536)
    return found
