"""Remote models over every line: values, shapes, derivatives, errors, and many points."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farm.call import DERIVATIVES, Operation
from farm.client import Client, RemoteModel, connect
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    Unavailable,
    WorkerLost,
)
from tests.support.coroutines import LIMIT_S, wait_until
from tests.support.dispatcher_farm import Served, serving
from tests.support.scripted_lines import MODELS, in_farm
from tests.support.time_limits import scaled
from tests.support.umbridge_models import Smooth

X = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture
def affine(client: Client) -> RemoteModel:
    return client.model("affine")


@pytest.fixture
def two(client: Client) -> RemoteModel:
    return client.model("two")


# One point


def test_config_goes_along(affine: RemoteModel) -> None:
    assert affine(X, {"add": 1.0}).tolist() == [4.0, 8.0]
    assert affine.evaluate(X, config={"add": np.float64(2.0)}).tolist() == [5.0, 9.0]


def test_shapes_follow_the_config(two: RemoteModel) -> None:
    out = two({"a": [1.0, 2.0, 4.0], "k": [1]}, {"n": 3})
    assert out["copy"].tolist() == [1.0, 2.0, 4.0]
    assert two.describe({"n": 3}).inputs[0].shape == (3,)
    assert two.info.inputs[0].shape == (2,)


def test_long_vectors_come_through(client: Client) -> None:
    x = np.random.default_rng(1).standard_normal(200_000)
    y = client.model("long")(x, {"n": 200_000})
    assert np.array_equal(y, 2.0 * x)


def test_what_is_sent_may_be_changed_at_once(affine: RemoteModel) -> None:
    x = np.zeros((2, 2))
    futures = []
    for k in range(50):
        x[:] = k
        futures.append(affine.submit(x))
    assert [f.result(LIMIT_S)[0] for f in futures] == [2.0 * k for k in range(50)]


@pytest.mark.parametrize(
    ("point", "kind", "text"),
    [
        (-1.0, ModelFailed, "ValueError: minus one is not for me"),
        (-2.0, InvalidOutput, r"output 'y' of model 'moody' has shape \(3,\), expected \(1,\)"),
        ({"z": 1.0}, InvalidInput, r"the point has 'z'; model 'moody' has x \(1,\)"),
    ],
)
def test_errors_say_what_is_wrong(
    moody: RemoteModel, point: object, kind: type[FarmError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        moody(point)


def test_nan_is_a_number(moody: RemoteModel) -> None:
    assert np.isnan(moody(-4.0)[0])
    assert moody([-np.inf]).tolist() == [-np.inf]


def test_a_crash_says_so(client: Client) -> None:
    with pytest.raises(WorkerLost, match="not repeatable"):
        client.model("once")(1.0)


# Many points


def test_an_array_of_points_gives_an_array(affine: RemoteModel, moody: RemoteModel) -> None:
    x = np.random.default_rng(2).standard_normal((600, 2, 2))
    assert np.allclose(affine.map(x), x.sum(axis=2), rtol=1e-15)
    assert np.allclose(affine.map(x.reshape(-1, 4), {"add": 1.0}), x.sum(axis=2) + 1.0)
    assert affine.map(x[:0]).shape == (0, 2)
    points = np.arange(10.0)[:, None]
    out = moody.map(points)
    assert out.tolist() == points.tolist()
    assert out.flags.writeable


def test_points_of_any_kind_give_outputs_in_their_order(two: RemoteModel) -> None:
    points = [{"a": [float(i), 1.0], "k": [2]} for i in range(100)]
    outs = list(two.map(points))
    assert [out["sum"][0] for out in outs] == [2.0 * i + 2.0 for i in range(100)]


def test_as_completed_gives_the_quick_ones_first(moody: RemoteModel) -> None:
    points = [102.0, 1.0, 2.0]
    order = [(i, y[0]) for i, y in moody.as_completed(points)]
    assert order[-1] == (0, 102.0)
    assert sorted(order) == list(enumerate(points))


def test_an_error_is_raised_at_its_place(moody: RemoteModel) -> None:
    outs = moody.map([1.0, 2.0, -1.0, 4.0, "five"])
    assert next(outs)[0] == 1.0
    assert next(outs)[0] == 2.0
    with pytest.raises(ModelFailed, match="minus one") as caught:
        next(outs)
    assert caught.value.__notes__[0] == "at point 2"
    assert list(outs) == []


def test_errors_may_be_given_in_place_of_outputs(moody: RemoteModel) -> None:
    outs = list(moody.map([1.0, -1.0, "two", -2.0, 5.0], return_errors=True))
    kinds = [type(out) for out in outs]
    assert kinds == [np.ndarray, ModelFailed, InvalidInput, InvalidOutput, np.ndarray]
    indices = dict(moody.as_completed(np.array([[1.0], [-1.0]]), return_errors=True))
    assert isinstance(indices[1], ModelFailed)


def test_leaving_a_loop_takes_the_rest_back(client: Client, moody: RemoteModel) -> None:
    for y in moody.map([1.0, *[101.0] * 1000]):
        assert y[0] == 1.0
        break
    wait_until(lambda: not any(q["queued"] for q in client.status()["queues"]))
    assert moody(2.0)[0] == 2.0  # within the time limit of the test


@pytest.mark.slow
def test_a_thousand_long_vectors_do_not_all_wait_at_once(client: Client) -> None:
    taken = []

    def points() -> Iterator[object]:
        for _ in range(1000):
            taken.append(1)
            yield np.zeros(10**6)

    outs = client.model("long").map(points())
    next(outs)
    outs.close()  # type: ignore[attr-defined]  # a generator
    assert len(taken) <= 130
    # Calls sent earlier arrive at the farm before this query.
    wait_until(lambda: in_farm(client) == 0)


def busy(client: Client) -> list[int]:
    """Return the processes that are running a call."""
    return [row["pid"] for row in client.status()["workers"] if row["in_flight"]]


def end_what_runs(client: Client, processes: list[int]) -> None:
    """Kill processes with running models: cancelling a call does not stop its model."""
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: in_farm(client) == 0)


# Futures


def test_a_deadline_is_kept(target: str | Path, moody: RemoteModel) -> None:
    assert moody(1.0)[0] == 1.0  # a worker has joined
    deadline_s = scaled(0.5)
    with connect(target, deadline_s=deadline_s, client="hasty", priority=2) as client:
        hasty = client.model("moody")
        assert hasty(1.0)[0] == 1.0
        with pytest.raises(DeadlineExceeded, match="no answer within"):
            hasty(100.0 + 2.0 * deadline_s)


def test_many_threads_share_a_model(affine: RemoteModel) -> None:
    wrong = []

    def caller(k: int) -> None:
        for i in range(20):
            if affine(X + k, {"add": float(i)}).tolist() != [3.0 + 2 * k + i, 7.0 + 2 * k + i]:
                wrong.append((k, i))

    threads = [threading.Thread(target=caller, args=(k,)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_model_travels_to_other_processes(moody: RemoteModel) -> None:
    other: RemoteModel = pickle.loads(pickle.dumps(moody))
    assert other(3.0)[0] == 3.0
    assert other.name == "moody"
    assert repr(other) == "<RemoteModel 'moody'>"


# Shutdown


def test_ctrl_c_ends_a_program_that_waits(served: Served) -> None:
    program = (
        "import sys\n"
        "from farm.client import connect\n"
        "model = connect(sys.argv[1]).model('moody')\n"
        "print('ready', flush=True)\n"
        "{wait}\n"
    )
    for target, wait in (
        (str(served.folder), "list(model.map([160.0] * 10))"),
        (served.connection.url, "model(160.0)"),
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", program.format(wait=wait), target],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)  # usually it is already waiting; the test holds in any case
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)  # it ends before the model is done
        assert errors.strip().endswith("KeyboardInterrupt")
    with connect(served.folder) as client:
        wait_until(lambda: not any(queue["queued"] for queue in client.status()["queues"]))
        end_what_runs(client, busy(client))


@pytest.mark.slow
@pytest.mark.parametrize("over", ["native", "http"])
def test_a_killed_farm_is_no_reason_to_hang(tmp_path: Path, over: str) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    with (
        serving(tmp_path, "models.py:Moody") as farm,
        connect(farm.folder if over == "native" else farm.connection.url, wait=1.0) as client,
    ):
        moody = client.model("moody")
        future = moody.submit(120.0)
        outs = moody.map([120.0] * 10)
        # Until its first output is requested, a map sends points for only 20 ms.
        wait_until(lambda: in_farm(client) > 1)
        farm.process.kill()
        assert isinstance(future.exception(LIMIT_S), Unavailable)
        with pytest.raises(Unavailable):
            next(outs)
        with pytest.raises(Unavailable):
            moody(1.0)


# Other servers


def test_the_official_server_serves_as_well(official: str) -> None:
    with connect(official) as client:
        assert client.models() == ["odd", "smooth"]
        smooth = client.model("smooth")
        original = Smooth()
        point = [[1.0, 2.0, 3.0], [4.0, 5.0]]
        expected = original(point, {})
        out = smooth(point)
        assert [out["out0"].tolist(), out["out1"].tolist()] == expected
        offered = DERIVATIVES - {Operation.VALUE_AND_GRADIENT} | {Operation.EVALUATE}
        assert smooth.info.operations == offered
        sens, vec = [1.0, 2.0], [1.0, -1.0, 0.5]
        gradient = original.gradient(0, 0, point, sens, {})
        assert np.allclose(smooth.gradient("out0", "in0", point, sens), gradient)
        jacobian = original.apply_jacobian(0, 0, point, vec, {})
        assert np.allclose(smooth.apply_jacobian(0, 0, point, vec), jacobian)
        odd = client.model("odd")
        points = np.arange(100.0)[:, None]
        assert np.array_equal(odd.map(points), points**2)
        with pytest.raises(ModelFailed, match="the model server failed with status 500"):
            odd(1.0, {"give": "raise"})
        nonfinite = odd(1.0, {"give": "nonfinite"})
        assert np.array_equal(nonfinite, [np.nan, np.inf, -np.inf], equal_nan=True)
