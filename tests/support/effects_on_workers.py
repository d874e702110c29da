"""How the owner of a farm sees the settings of its processes, transport and logs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil

from farm.client.native_line import NativeLine
from farm.errors import Unavailable
from farm.settings import Settings
from farm.transports.connection import read_connection
from tests.support.proxy import Proxy
from tests.support.setting_ways import There
from tests.support.warm_parents import parents_among


def workers(there: There) -> None:
    there.wait(lambda: len(there.client.status()["workers"]) == there.values["workers"])


def fork(there: There) -> None:
    """The farm has no parent process for forks."""
    workers(there)
    parents = parents_among(psutil.Process(there.pid).children(recursive=True))
    assert not [one for one in parents if there.values["dir"] in str(one.cmdline())]


def dir(there: There) -> None:
    assert there.run == there.folder / there.values["dir"]
    assert (there.run / "farm.json").is_file()
    assert list((there.run / "logs").iterdir())
    assert not (there.folder / "farm-run").exists()


def log_format(there: There) -> None:
    """The log of a model is JSON, and so is the stderr of `farm serve`."""
    assert there.evaluate("plate", 1.0, say="words")[0] == 200
    logs = there.run / "logs"

    def spoken() -> str:
        return "".join(path.read_text() for path in logs.glob("*.log"))

    there.wait(lambda: "words" in spoken())
    lines = [json.loads(line) for line in spoken().splitlines()]
    assert [line["logger"] for line in lines if line["message"] == "words"] == ["stdout"]
    if there.errors is not None:
        errors = there.errors
        assert there.evaluate("plate", 1.0, **{"raise": "no root"})[0] == 500
        there.wait(lambda: "no root" in errors.read_text())
        assert all("message" in json.loads(line) for line in errors.read_text().splitlines())


def otel(there: There) -> None:
    """The collector that the environment names gets the span of a request."""
    trace = random.randbytes(16).hex()
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    assert there.ask("POST", "/Evaluate", b"{}", headers=headers)[0] == 400
    assert there.spans is not None
    received = there.spans.spans
    there.wait(lambda: ("POST /Evaluate", trace) in [(span.name, span.trace) for span in received])


def transport(there: There) -> None:
    """The farm has an address of ZeroMQ only, and answers there."""
    assert (there.connection.local, there.connection.endpoint[:6]) == ("", "tcp://")
    assert there.client.status()["workers"] == []


def heartbeat_s(there: There) -> None:
    """The farm gives up a client that falls silent, after this time and before the default's."""
    with (
        Proxy(there.connection) as proxy,
        closing(NativeLine(proxy.connection, heartbeat_s=60.0)) as line,
    ):
        line.names()
        fell_silent = time.monotonic()
        proxy.swallow()
        there.wait(lambda: proxy.accepted == 2)  # ZeroMQ dials again when it is disconnected
        silent_s = time.monotonic() - fell_silent
    assert 0.9 * there.values["heartbeat_s"] < silent_s < Settings().heartbeat_s


def start_timeout_s(there: There) -> None:
    """A call waits for the first worker no longer than that."""
    status, answer = there.evaluate("beam", 1.0)
    assert status == 503, answer


def mpi(there: There) -> None:
    assert there.evaluate("group", 0.0) == (200, {"output": [[there.values["mpi"]]]})


def mpi_launch(there: There) -> None:
    """The script that is the launcher was run, with the number of ranks."""
    assert there.evaluate("group", 0.0)[0] == 200
    assert int((there.folder / "launched").read_text()) == there.values["mpi"]


def dask(there: There) -> None:
    """The only worker is the cluster."""
    assert there.evaluate("plate", 1.5) == (200, {"output": [[1.5]]})
    (worker,) = there.client.status()["workers"]
    cluster = json.loads((there.folder / there.values["dask"]).read_text())
    assert worker["host"] == cluster["address"]


def dask_slots(there: There) -> None:
    """So many calls are at the cluster, although it has fewer threads."""
    count = there.values["dask_slots"]
    with ThreadPoolExecutor(count) as pool:
        try:
            calls = [pool.submit(there.evaluate, "plate", 1.0, until="go") for _ in range(count)]
            there.wait(lambda: _at_workers(there) == count)
        finally:
            (there.folder / "go").touch()
        assert [call.result()[0] for call in calls] == [200] * count


def _at_workers(there: There) -> int:
    return sum(row["in_flight"] for row in there.client.status()["queues"])


def dask_resources(there: There) -> None:
    """While a call runs, the GPU of its Dask worker is taken."""
    assert there.evaluate("spare", 1.0) == (200, {"output": [[0.0]]})


def supervise(there: There) -> None:
    """A front door that is killed serves again, at the same address."""
    os.kill(there.connection.pid, signal.SIGKILL)

    def is_back() -> bool:
        with contextlib.suppress(Unavailable):
            new = read_connection(there.run)
            return new.pid != there.connection.pid and new.url == there.connection.url
        return False

    there.wait(is_back)
    assert there.evaluate("beam", 1.5) == (200, {"output": [[1.5]]})
