"""`farm cancel`: the owner cancels what a client has in the queue, over either connection."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

import farm
from farm.cli import run
from farm.transports.connection import read_connection
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S, serving

MODEL = """
import os, time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def gate(x):
    while not os.path.exists("open"):
        time.sleep(0.002)
    return x
"""


@pytest.mark.parametrize("native", [True, False])
def test_the_waiting_calls_of_a_client_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], native: bool
) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    with serving(tmp_path, "m.py", "--workers", "1") as served:
        target = str(served.folder) if native else served.connection.url

        def cancelled(*arguments: str) -> str:
            assert run(["cancel", *arguments, "--to", target]) == 0
            return capsys.readouterr().out

        with farm.connect(target, client="sampler", chain="1") as client:
            model = client.model()
            runs = model.submit([1.0])
            wait_until(lambda: any(row["in_flight"] for row in client.status()["queues"]))
            with farm.chain("2"):
                two = model.submit([2.0])
            one = model.submit([3.0])
            wait_until(lambda: client.why()["phase"] == "queued")
            wait_until(lambda: client.why(chain="2")["phase"] == "queued")
            assert cancelled("nobody") == "cancelled 0 waiting calls\n"
            assert cancelled("sampler", "--chain", "2") == "cancelled 1 waiting call\n"
            with pytest.raises(farm.FarmError, match=r"calls of 'sampler', chain '2'") as refusal:
                two.result(LIMIT_S)
            assert type(refusal.value).__name__ == "Cancelled"
            assert not one.done()
            assert cancelled("sampler") == "cancelled 1 waiting call\n"
            with pytest.raises(farm.FarmError, match="the owner of the farm cancelled"):
                one.result(LIMIT_S)
            assert not runs.done()
            (tmp_path / "open").touch()
            assert runs.result(LIMIT_S)[0] == 1.0
            assert client.cancel_calls("sampler") == 0


def test_it_is_an_action(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    with serving(tmp_path, "m.py", "--workers", "1") as served:
        url = f"{read_connection(served.folder).url}/farm/cancel"
        assert requests.get(url, params={"client": "a"}, timeout=LIMIT_S).status_code == 405
        answer = requests.post(url, params={"client": "a"}, timeout=LIMIT_S)
        assert (answer.status_code, answer.json()) == (200, {"cancelled": 0})
        assert requests.post(url, timeout=LIMIT_S).status_code == 400
