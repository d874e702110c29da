"""Sequences of Triton's own Python clients, unchanged, against `farm serve`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

import farm
from farm.settings import Settings
from tests.conformance.triton_farm import GRPC, HTTP, Stream, Way
from tests.support.dispatcher_farm import Served, serving
from tests.support.front_door import front_door, read_answer
from tests.support.running_farm import wait_until

MODELS = """
import os
import farm

class Total(farm.Model):
    "The sum of x over a sequence, its length, and the process that has it."
    name = "total"
    inputs = {"x": 1}
    outputs = {"total": 1, "count": farm.tensor(1, "int64"), "pid": farm.tensor(1, "int64")}
    stateful = True

    def evaluate(self, inputs, config, sequence):
        if inputs["x"] == 13:
            raise ValueError("thirteen")
        sequence["total"] = sequence.get("total", 0.0) + inputs["x"]
        sequence["count"] = sequence.get("count", 0) + 1
        return sequence["total"], [sequence["count"]], [os.getpid()]

class Brief(Total):
    "The same, with one place at each worker, for a moment."
    name = "brief"
    max_sequences = 1
    sequence_idle_s = 0.2
"""

SPECS = [f"models.py:{name}" for name in ("Total", "Brief")]


@contextmanager
def farm_in(folder: Path, *options: str) -> Iterator[Served]:
    (folder / "models.py").write_text(MODELS)
    with serving(folder, *SPECS, "--workers", "2", "--grpc-port", "0", *options) as running:
        running.wait_for_workers(2)
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with farm_in(tmp_path_factory.mktemp("sequences")) as running:
        yield running


@pytest.fixture
def way() -> Way:
    return GRPC


def ask(
    client: Any,
    x: float,
    sequence: int | str,
    flags: str = "",
    *,
    model: str = "total",
) -> Any:
    """Send a request of a sequence. flags: "s" for its start, "e" for its end."""
    return client.infer(
        model,
        [GRPC.tensor([[float(x)]])],
        sequence_id=sequence,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )


def total(result: Any) -> float:
    return float(result.as_numpy("total")[0, 0])


def pid(result: Any) -> int:
    return int(result.as_numpy("pid")[0, 0])


# Requests of sequences


@pytest.mark.parametrize("sequence", [5, 2**63 - 1, "5", "a name é", "x" * 128])
def test_requests_of_a_sequence_share_a_state(client: Any, sequence: int | str) -> None:
    results = [ask(client, x, sequence, flags) for x, flags in ((1, "s"), (2, ""), (4, "e"))]
    assert [total(result) for result in results] == [1.0, 3.0, 7.0]
    assert len({pid(result) for result in results}) == 1
    with GRPC.refused(
        "INVALID_ARGUMENT", f"inference request for sequence {sequence} to model 'total' must"
    ):
        ask(client, 8, sequence)


def test_over_http(served: Served) -> None:
    with HTTP.sync.InferenceServerClient(HTTP.address(served)) as client:
        two = HTTP.tensor([[2.0]])
        infer = partial(client.infer, "total", [two], sequence_id="over http")
        assert total(infer(sequence_start=True)) == 2.0
        assert total(infer()) == 4.0
        assert total(infer(sequence_end=True)) == 6.0
        start = "must specify the START flag on the first request of the sequence"
        with HTTP.refused("INVALID_ARGUMENT", start):
            infer()


def test_interleaved_sequences_of_a_stream(client: Any) -> None:
    """Their requests are sent without waiting for answers, and come in order."""
    stream = Stream(client)
    for step in range(12):
        for sequence in (100, 101, "text"):
            stream.ask(
                "total",
                GRPC.tensor([[float(step)]]),
                request_id=f"{sequence} {step}",
                sequence_id=sequence,
                sequence_start=step == 0,
                sequence_end=step == 11,
            )
    found: dict[str, list[float]] = {}
    for _ in range(36):
        result = stream.result()
        found.setdefault(result.get_response().id.split()[0], []).append(total(result))
    stream.end()
    sums = list(np.cumsum(np.arange(12.0)))
    assert found == {"100": sums, "101": sums, "text": sums}


def test_a_long_request_keeps_its_place_in_a_stream(client: Any) -> None:
    """It takes longer to read than the short ones behind it."""
    stream = Stream(client)
    long = {"note": "x" * (4 << 20)}
    for step in range(4):
        stream.ask(
            "total",
            GRPC.tensor([[1.0]]),
            sequence_id=31,
            sequence_start=step == 0,
            sequence_end=step == 3,
            parameters=long if step in (0, 2) else None,
        )
    assert [total(stream.result()) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    stream.end()


def test_a_start_begins_anew(client: Any) -> None:
    assert [total(ask(client, 1, 9, flags)) for flags in ("s", "", "s", "e")] == [1, 2, 1, 2]


def test_an_error_of_the_model_does_not_end_a_sequence(
    client: Any,
) -> None:
    ask(client, 1, 10, "s")
    with GRPC.refused("INTERNAL", "thirteen"):
        ask(client, 13, 10)
    assert total(ask(client, 1, 10, "e")) == 2.0


def test_sequences_that_are_idle_end_and_free_their_places(
    client: Any,
) -> None:
    """Each of two workers has one place, so that five sequences need that some end by themselves.

    All five can only be answered if at least three of them have ended.
    """
    for sequence in range(1, 6):
        assert total(ask(client, 1, sequence, "s", model="brief")) == 1.0
    with GRPC.refused("INVALID_ARGUMENT", "must specify the START flag"):
        ask(client, 1, 1, model="brief")


# Requests that are refused


def test_other_protocols_say_that_a_sequence_is_needed(served: Served) -> None:
    with (
        farm.connect(served.folder) as client,
        pytest.raises(farm.errors.UnsupportedFeature, match="keeps a state for each sequence"),
    ):
        client.model("total")([1.0])


def test_the_configuration_names_the_sequence_batcher(
    client: Any,
) -> None:
    config = client.get_model_config("brief", as_json=True)["config"]
    assert config["sequence_batching"] == {
        "max_sequence_idle_microseconds": "200000",
        "oldest": {"max_candidate_sequences": 1},
    }
    assert {"sequence", "sequence(string_id)"} <= set(client.get_server_metadata().extensions)


# Failures


def test_a_killed_worker_breaks_off_its_sequences_and_no_others(tmp_path: Path) -> None:
    with (
        farm_in(tmp_path) as running,
        triton.InferenceServerClient(running.connection.grpc) as client,
    ):
        where = {sequence: pid(ask(client, 1, sequence, "s")) for sequence in range(1, 9)}
        killed = where[1]
        kept = [sequence for sequence, at in where.items() if at != killed]
        assert kept, "sequences are spread over the workers"
        os.kill(killed, signal.SIGKILL)
        running.wait_for_workers(2)
        wait_until(lambda: killed not in _pids(running), "its loss is noticed")
        for sequence, at in where.items():
            if at == killed:
                with GRPC.refused("INVALID_ARGUMENT", "must specify the START flag"):
                    ask(client, 2, sequence)
                assert total(ask(client, 2, sequence, "s")) == 2.0
            else:
                assert total(ask(client, 2, sequence)) == 3.0


def test_a_draining_worker_goes_on_with_its_sequences(tmp_path: Path) -> None:
    with farm_in(tmp_path) as running:
        with triton.InferenceServerClient(running.connection.grpc) as client:
            drained = pid(ask(client, 1, 1, "s"))
            os.kill(drained, signal.SIGTERM)
            wait_until(lambda: drained in _pids(running, "shut"), "it drains")
            # New ones begin at the other worker.
            assert drained not in {pid(ask(client, 1, i, "se")) for i in range(2, 8)}
            for x, flags, expected in ((2, "", 3.0), (4, "e", 7.0)):
                result = ask(client, x, 1, flags)
                assert (total(result), pid(result)) == (expected, drained)
            wait_until(lambda: drained not in _pids(running), "it leaves after its last sequence")
            ask(client, 1, 9, "s")
        status, _, errors = running.stop()  # with a sequence that is open
        assert status == 0, errors


class Few(farm.Model):
    """Has one place for a sequence."""

    inputs, outputs = {"x": 1}, {"y": 1}
    stateful = True
    max_sequences = 1

    def evaluate(  # type: ignore[override]  # a stateful model has a third argument
        self, inputs: farm.Inputs, config: farm.Config, sequence: farm.Sequence
    ) -> Any:
        return inputs["x"]


def test_sequences_that_are_never_ended_are_bounded() -> None:
    """One place, and a queue of 20, and a tenth of that: the others are refused at once."""
    x = {"name": "x", "shape": [1], "datatype": "FP64", "data": [1.0]}
    waiting: list[socket.socket] = []
    with (
        front_door({"few": Few()}, settings=Settings(port=0, max_queued=20)) as door,
        contextlib.ExitStack() as stack,
    ):
        for number in range(1, 61):
            connection = stack.enter_context(door.connect())
            parameters = {"sequence_id": number, "sequence_start": True}
            body = json.dumps({"parameters": parameters, "inputs": [x]}).encode()
            head = (
                f"POST /v2/models/few/infer HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            if number == 1:
                assert read_answer(connection)[0] == 200
            else:
                waiting.append(connection)
        wait_until(lambda: len(select.select(waiting, [], [], 0)[0]) >= 37, "most are answered")
        answered = [read_answer(c) for c in select.select(waiting, [], [], 0)[0]]
        assert Counter(status for status, _ in answered) == {503: 37}
        refusals = {body for status, body in answered if status == 503}
        assert all(b"calls are waiting, the most the farm takes" in body for body in refusals)


def _pids(running: Served, *phases: str) -> set[int]:
    """Return the processes of the workers, of those in these phases if there are any."""
    with farm.connect(running.folder) as client:
        rows = client.status()["workers"]
        return {row["pid"] for row in rows if not phases or row["phase"] in phases}
