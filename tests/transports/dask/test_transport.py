"""The Dask transport over real clusters: connected, lost, reconnected, closed."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.config
import pytest
from distributed.security import Security

from farm.errors import FarmError, Unavailable
from farm.transports.dask.transport import DaskTransport, _no_errors
from tests.support.coroutines import until
from tests.support.dask_cluster import (
    LIMIT_S,
    MODELS,
    Cluster,
    dask_cluster,
    expect_squares,
    in_flight,
    joined,
    outcomes_of,
    square,
)


@pytest.mark.slow
async def test_the_scheduler_comes_back(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.transports.dask.transport.RECONNECT_S", 0.1)
    cluster.add_worker()
    async with joined(cluster) as dispatcher:
        calls = [square(float(i), sleep=0.05) for i in range(10)]
        waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
        await until(lambda: in_flight(dispatcher), LIMIT_S)
        cluster.scheduler.kill()
        cluster.scheduler.wait()
        await until(lambda: not dispatcher.snapshot()["workers"], LIMIT_S)
        assert not waiting.done()
        cluster.start_scheduler()
        cluster.add_worker()
        expect_squares(await asyncio.wait_for(waiting, LIMIT_S))
        events = [e["event"] for e in dispatcher.snapshot()["events"]]
        assert events == ["joined", "lost", "joined"]
        assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.mark.slow
async def test_closing_leaves_nothing_in_the_cluster(cluster: Cluster) -> None:
    cluster.add_worker()
    async with joined(cluster) as dispatcher:
        calls = [square(float(i), sleep=0.3) for i in range(5)]
        waiting = asyncio.create_task(outcomes_of(dispatcher, calls))
        await until(lambda: in_flight(dispatcher), LIMIT_S)
        await dispatcher.close(grace_s=0.0)
        assert all(isinstance(outcome, FarmError) for outcome in await waiting)
        assert cluster.tasks() == []


@pytest.mark.slow
async def test_a_scheduler_file_says_where_too(cluster: Cluster) -> None:
    cluster.add_worker()
    cluster.address = str(cluster.scheduler_file)
    async with joined(cluster) as dispatcher:
        expect_squares(await outcomes_of(dispatcher, [square(0.0)]))


async def test_no_cluster_at_that_address(tmp_path: Path) -> None:
    (tmp_path / "square.py").write_text(MODELS)
    cluster: Any = SimpleNamespace(address=str(tmp_path / "nowhere.json"), folder=tmp_path)
    with pytest.raises(Unavailable, match=r"neither a scheduler file .* nor an address"):
        async with joined(cluster):
            pass


@pytest.mark.slow
async def test_the_security_of_dask_is_the_farms(tmp_path: Path) -> None:
    temporary = Security.temporary()
    for name, text in (("cert", temporary.tls_client_cert), ("key", temporary.tls_client_key)):
        (tmp_path / f"{name}.pem").write_text(text)
    (tmp_path / "ca.pem").write_text(temporary.tls_ca_file)
    tls: dict[str, object] = {"ca-file": str(tmp_path / "ca.pem")}
    for role in ("scheduler", "worker", "client"):
        tls[role] = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    environment = {"DASK_DISTRIBUTED__COMM__TLS": str(tls)}
    environment["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] = "True"
    (tmp_path / "square.py").write_text(MODELS)
    with dask_cluster(tmp_path, environment, scheme="tls") as cluster:
        assert cluster.address.startswith("tls://")
        cluster.add_worker()
        with pytest.raises(Unavailable, match=r"no Dask cluster at tls://.* TLS"):
            async with joined(cluster):
                pass
        with dask.config.set({f"distributed.comm.tls.{k}": v for k, v in tls.items()}):
            async with joined(cluster) as dispatcher:
                expect_squares(await outcomes_of(dispatcher, [square(0.0)]))


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(Unavailable, match=r'pip install "modelfarm\[dask\]"'):
        DaskTransport("tcp://127.0.0.1:8786", ["square.py"])


def test_errors_of_a_client_that_is_closed_are_not_the_users(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client_log = logging.getLogger("distributed.client")
    with _no_errors():
        client_log.error("closed on the way", exc_info=ValueError())
        client_log.error("Failed to reconnect")
        client_log.warning("still said")
    client_log.error("said again", exc_info=ValueError())
    assert [record.getMessage() for record in caplog.records] == ["still said", "said again"]
