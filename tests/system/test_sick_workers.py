"""A real farm with a slow worker, one that hangs, and one that prints: seen, followed, mended."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.client.client import Client
from farm.monitoring.workers import FEW_RUNS
from tests.support.dispatcher_farm import FARM, LIMIT_S, Served, environment, farm_of, run_farm
from tests.support.running_farm import wait_until

MODEL = '''
import os, time
from pathlib import Path
import farm

HERE = Path(__file__).parent
PLACE = os.environ["FARM_REPLICA"]

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def odd(x):
    """The worker in place 0 is slow; a negative number hangs in the first worker that gets it."""
    print("runs", x[0])
    if x[0] < 0 and not (HERE / "hung").exists():
        (HERE / "hung").write_text(PLACE)
        time.sleep(1000)
    time.sleep(0.2 if PLACE == "0" else 0.02)
    return 2 * x
'''


served = farm_of(MODEL, workers=3, scope="function")


def rows(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.status()["workers"]
    return found


@pytest.mark.slow
def test_a_slow_worker_is_named(served: Served) -> None:
    with farm.connect(served.folder) as client:
        model = client.model("odd")

        def all_have_run() -> bool:
            list(model.map([[float(i)] for i in range(30)]))
            return all(row["run_times_s"]["count"] >= FEW_RUNS for row in rows(client))

        def sick() -> list[dict[str, Any]]:
            return [row for row in rows(client) if row["trouble"]]

        # A busy machine may have made another one seem slow for a while.
        wait_until(lambda: all_have_run() and len(sick()) == 1, "one of them is sick")
        (slow,) = sick()
        assert re.fullmatch(r"its runs take [\d.]+ times as long .*", slow["trouble"][0])
        # Runs of 200 ms, on any machine: the others sleep 20 ms.
        assert slow["run_times_s"]["p50"] >= 0.19
        assert slow["memory_bytes"] > 2**20
    status, out, _ = run_farm("status", "--to", str(served.folder), cwd=served.folder)
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("worker "))
    assert status == 0
    assert lines[first + 1].startswith(slow["name"])  # those with trouble come first
    assert f"{slow['name']}: its runs take" in out


@pytest.mark.slow
def test_a_call_that_hangs_is_seen_and_ends_with_a_restart(served: Served) -> None:
    with farm.connect(served.folder) as client:
        model = client.model("odd")
        answer = model.submit([-1.0])
        wait_until((served.folder.parent / "hung").exists, "the call hangs")

        def hanging() -> list[dict[str, Any]]:
            return [row for row in rows(client) if row["running_s"] is not None]

        wait_until(lambda: len(hanging()) == 1, "it is seen")
        (row,) = hanging()
        assert (row["running"]["model"], row["running"]["operation"]) == ("odd", "evaluate")
        assert "runs -1.0" in client.log(row["name"])
        assert not answer.done()
        status, _, _ = run_farm("restart", row["name"], "--to", str(served.folder), cwd=Path("/"))
        assert status == 0
        assert answer.result(LIMIT_S)[0] == -2.0  # from another worker, as of any lost one
        wait_until(lambda: len(rows(client)) == 3, "another one takes its place")
        assert sorted(r["restarts"] for r in rows(client)) == [0, 0, 1]
        assert row["name"] not in {r["name"] for r in rows(client)}
        # What it printed before is still there, as it may tell why it hung.
        assert "runs -1.0" in client.log(row["name"])


@pytest.mark.slow
def test_what_a_worker_prints_is_followed(served: Served) -> None:
    with farm.connect(served.folder) as client:
        worker = rows(client)[0]["name"]
        words = [*FARM, "logs", worker, "-f", "--lines", "1", "--to", str(served.folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment()) as following:
            assert following.stdout is not None
            try:
                os.set_blocking(following.stdout.fileno(), False)
                heard = bytearray()

                def hears() -> bool:
                    heard.extend(following.stdout.read() or b"")  # type: ignore[union-attr]
                    return b"runs" in heard

                def all_run() -> bool:
                    list(client.model("odd").map([[float(i)] for i in range(12)]))
                    return hears()

                wait_until(lambda: hears() or b"farm starts" in heard, "the end of the log")
                assert b"runs" not in heard
                wait_until(all_run, "what it prints now")
            finally:
                following.terminate()
