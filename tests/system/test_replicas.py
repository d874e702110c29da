"""Several servers of one model behind one farm: balance, loss and return."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubemo
import pytest

import farm
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S, Served, run_farm, serving
from tests.support.kubemo_server import kubemo_serving


def ask(address: str, text: str) -> Any:
    ((answer,),) = kubemo.Client().inference(address, ((kubemo.Text(text),),))
    return answer.decode()


def rows(served: Served) -> list[dict[str, Any]]:
    with farm.connect(served.folder) as client:
        found: list[dict[str, Any]] = client.status()["workers"]
    return found


def events(served: Served) -> list[str]:
    with farm.connect(served.folder) as client:
        return [f"{event['event']}: {event['text']}" for event in client.status()["events"]]


@pytest.mark.slow
def test_calls_are_shared_and_survive_the_loss_of_a_server(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    spec = "m@" + ",".join(f"mip+unix:{path}" for path in paths)
    with (
        kubemo_serving("slow", paths[0]) as (_, first),
        kubemo_serving("slow", paths[1]),
        serving(tmp_path, spec, "--mip", "127.0.0.1:0") as served,
        ThreadPoolExecutor(8) as pool,
    ):
        (address,) = served.connection.addresses["mip"]
        served.wait_for_workers(2)
        texts = [f"x{n}" for n in range(8)]
        assert list(pool.map(lambda text: ask(address, text), texts)) == [t.upper() for t in texts]
        wait_until(lambda: all(row["done"] >= 2 for row in rows(served)))

        waiting = [pool.submit(ask, address, text) for text in 3 * texts]
        wait_until(lambda: sum(row["in_flight"] > 0 for row in rows(served)) == 2)
        first.kill()
        assert [future.result(LIMIT_S) for future in waiting] == [t.upper() for t in 3 * texts]
        wait_until(lambda: len(rows(served)) == 1)
        assert "lost: its model server does not answer" in events(served)
        assert ask(address, "alone") == "ALONE"

        Path(paths[0]).unlink()
        with kubemo_serving("slow", paths[0]):
            wait_until(lambda: len(rows(served)) == 2)
            assert list(pool.map(lambda text: ask(address, text), texts))
            wait_until(lambda: all(row["done"] >= 2 for row in rows(served)))


@pytest.mark.slow
def test_one_of_two_is_enough_to_begin(tmp_path: Path) -> None:
    there, missing = str(tmp_path / "a"), str(tmp_path / "b")
    with (
        kubemo_serving("upper", there),
        serving(tmp_path, f"m@mip+unix:{missing},mip+unix:{there}", "--mip", "127.0.0.1:0") as s,
    ):
        (address,) = s.connection.addresses["mip"]
        assert ask(address, "a") == "A"
        with kubemo_serving("upper", missing):
            wait_until(lambda: len(rows(s)) == 2)


@pytest.mark.slow
def test_none_of_two_is_told(tmp_path: Path) -> None:
    spec = f"m@mip+unix:{tmp_path}/a,mip+unix:{tmp_path}/b"
    status, _, errors = run_farm("serve", spec, "--port", "0", "--dir", "run", cwd=tmp_path)
    assert status == 2
    assert "does not answer: No such file" in errors.splitlines()[-1]


@pytest.mark.slow
def test_umbridge_servers_too(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        (folder / "beam.py").write_text(BEAM)
    with serving(folders[0], "beam.py") as a, serving(folders[1], "beam.py") as b:
        spec = f"beam@{a.connection.url},{b.connection.url}"
        with serving(tmp_path, spec) as served, farm.connect(served.folder) as client:
            served.wait_for_workers(2)
            beam = client.model("beam")
            point = {"in0": [1.0, 2.0, 4.0], "in1": [8.0]}
            a.kill()
            for _ in range(4):
                assert beam.evaluate(point).tolist() == [8, 4, 2]
            assert beam.gradient(0, 1, point, [1.0, 1.0, 1.0]).tolist() == pytest.approx([1.75])
            wait_until(lambda: len(rows(served)) == 1)
