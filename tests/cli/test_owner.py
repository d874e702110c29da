"""What the owner of a farm does to calls and workers, over either connection."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

import farm
from farm.cli import run
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S, Served, serving


def test_the_waiting_calls_of_a_client_fail(
    held: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    def cancelled(*arguments: str) -> str:
        assert run(["cancel", *arguments]) == 0
        return capsys.readouterr().out

    with farm.connect(held.folder) as other:
        runs = other.model().submit([1.0])
        wait_until(lambda: any(row["in_flight"] for row in other.status()["queues"]))
        for target in (str(held.folder), held.connection.url):
            to = "--to", target
            with farm.connect(target, client="sampler", chain="1") as client:
                model = client.model()
                with farm.chain("2"):
                    two = model.submit([2.0])
                wait_until(lambda: client.why(chain="2")["phase"] == "queued")
                one = model.submit([3.0])
                wait_until(lambda: client.why(chain="1")["phase"] == "queued")
                assert cancelled("nobody", *to) == "cancelled 0 waiting calls\n"
                assert cancelled("sampler", "--chain", "2", *to) == "cancelled 1 waiting call\n"
                with pytest.raises(farm.errors.Cancelled, match=r"calls of 'sampler', chain '2'"):
                    two.result(LIMIT_S)
                assert not one.done()
                assert cancelled("sampler", *to) == "cancelled 1 waiting call\n"
                with pytest.raises(farm.errors.Cancelled, match="the owner of the farm cancelled"):
                    one.result(LIMIT_S)
                assert client.cancel_calls("sampler") == 0
        assert not runs.done()
        (held.folder.parent / "open").touch()
        assert runs.result(LIMIT_S)[0] == 1.0
    url = f"{held.connection.url}/farm/cancel"
    assert requests.get(url, params={"client": "a"}, timeout=LIMIT_S).status_code == 405
    answer = requests.post(url, params={"client": "a"}, timeout=LIMIT_S)
    assert (answer.status_code, answer.json()) == (200, {"cancelled": 0})
    assert requests.post(url, timeout=LIMIT_S).status_code == 400


def test_a_worker_is_replaced_and_another_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    with (
        serving(tmp_path, "beam.py", "--workers", "2") as served,
        farm.connect(served.folder) as client,
    ):
        served.wait_for_workers(2)
        first, second = (row["name"] for row in client.status()["workers"])
        assert run(["restart", first, "--to", served.connection.url]) == 0
        assert capsys.readouterr().out == f"{first} is killed and started again\n"

        def others() -> list[int]:
            rows = client.status()["workers"]
            return [row["restarts"] for row in rows if row["name"] not in (first, second)]

        wait_until(lambda: others() == [1])
        assert run(["drain", second, "--to", str(served.folder)]) == 0
        assert capsys.readouterr().out == f"{second} finishes its calls and leaves\n"
        wait_until(lambda: len(client.status()["workers"]) == 1)

        def events() -> list[tuple[str, str]]:
            return [(event["event"], event["worker"]) for event in client.status()["events"]]

        wait_until(lambda: ("left", second) in events())
        assert run(["drain", second, "--to", str(served.folder)]) == 2
        assert f"worker {second} has left" in capsys.readouterr().err


def test_a_thread_has_no_supervisor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def double(x: float) -> float:
        return 2 * x

    with farm.serve(double, dir=tmp_path / "run") as client:
        (row,) = client.status()["workers"]
        assert run(["restart", row["name"], "--to", str(tmp_path / "run")]) == 2
    assert "no supervisor that starts it again" in capsys.readouterr().err
