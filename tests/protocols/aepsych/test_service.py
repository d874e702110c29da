"""The AEPsych server: every client is served in turn, whatever the others do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from farm.errors import INTERNAL_ERROR, Unavailable
from farm.experiment.host import Experiments
from farm.experiment.session import Session
from farm.http1.access import Access
from farm.protocols.aepsych.codec import MAX_VALUES, AepsychFramer, AepsychReply, AepsychRequest
from farm.protocols.aepsych.service import (
    AepsychServer,
    AepsychTimeouts,
    read_address,
    read_options,
)
from farm.settings import Settings, SettingsError
from tests.support.coroutines import LIMIT_S, LoopTurns, on_uvloop, until
from tests.support.experiment_clients import SETUP, Client, Served, asked, request, tell


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "experiments.db"


def reset(client: Client) -> None:
    """Disconnect abruptly: the other end gets a reset."""
    raw = client.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


async def asking(served: Served) -> tuple[Client, int]:
    """Return a client whose second ask runs until its process, whose id is returned, is resumed."""
    client = await served.set_up()
    await client.ask("ask")
    (pid,) = served.fitters.pids.values()
    os.kill(pid, signal.SIGSTOP)
    client.send(request("ask"))
    await until(lambda: served.experiments.waits(0))
    return client, pid


def test_addresses() -> None:
    assert read_address("127.0.0.1:5555", insecure=False) == ("127.0.0.1", 5555)
    assert read_address("[::1]:0", insecure=False) == ("::1", 0)
    assert read_address("0.0.0.0:1", insecure=True) == ("0.0.0.0", 1)
    with pytest.raises(SettingsError, match="expected HOST:PORT"):
        read_address("5555", insecure=True)
    with pytest.raises(SettingsError, match=r"AEPsych's messages carry no token.*insecure=True"):
        read_address("0.0.0.0:5555", insecure=False)


def test_a_journal_needs_an_address() -> None:
    assert read_options({"aepsych": None, "journal": None}, Settings()) is None
    with pytest.raises(SettingsError, match="journal is set; expected aepsych, an address"):
        read_options({"aepsych": None, "journal": Path("a.db")}, Settings())


@on_uvloop
async def test_a_conversation(journal: Path) -> None:
    async with asked(journal) as served:
        client = await served.connect()
        assert await client.ask("parameters") == {}
        assert "no experiment is current" in (await client.ask("ask"))["server_error"]
        assert await client.ask("setup", SETUP) == {"strat_id": 0}
        for k in range(4):
            answer = await client.ask("ask")
            assert (answer["num_points"], answer["is_finished"]) == (1, False)
            told = await client.ask("tell", tell(answer["config"], k))
            assert told == {"trials_recorded": 1, "model_data_added": 1}
        info = await client.ask("info")
        assert (info["current_strat_name"], info["current_strat_data_pts"]) == ("go_on", 4)
        assert info["db_name"] == str(journal)
        assert await client.ask("exit") == {"termination_type": "Terminate", "success": True}
        assert await client.rest() == ""
        other = await served.connect()
        assert await other.ask("resume", {"strat_id": 0}) == {"strat_id": 0}


@on_uvloop
async def test_garbage_is_answered_and_the_connection_lives(journal: Path) -> None:
    async with asked(journal) as served:
        client = await served.set_up()
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b'{"type": 1}', b"{]\n"):
            client.send(garbage)
            assert (await client.answer())["server_error"]
        assert "unknown" in (await client.ask("update"))["server_error"]
        client.send(b'{"type": "tell", "message": {"config": {"x": 1, "y": 2}, "outcome": NaN}}')
        assert await client.answer() == {"trials_recorded": 1, "model_data_added": 0}
        assert (await client.ask("ask"))["num_points"] == 1


@on_uvloop
async def test_a_message_above_the_limit_ends_the_connection(journal: Path) -> None:
    async with asked(journal, max_bytes=100_000) as served:
        client = await served.set_up()
        client.send(request("tell", tell({"x": [0.5] * 100_000, "y": 0}, 0)))
        answer = json.loads(await client.rest())
        assert "100000 bytes, which is the limit" in answer["server_error"]
        assert (await (await served.set_up()).ask("ask"))["num_points"] == 1


@pytest.mark.slow
@on_uvloop
async def test_a_message_of_too_many_values_is_refused_and_the_next_one_answered(
    journal: Path,
) -> None:
    async with asked(journal) as served:
        client = await served.set_up()
        message = tell({"x": [0] * MAX_VALUES, "y": 0}, 0)
        answer = await client.ask("tell", message)
        assert f"expected at most {MAX_VALUES}: send several" in answer["server_error"]
        assert answer["message"].startswith('{"type":')
        assert (await client.ask("ask"))["num_points"] == 1


@pytest.mark.slow
@on_uvloop
async def test_a_message_of_10_megabytes(journal: Path) -> None:
    async with asked(journal) as served:
        client = await served.set_up()
        other = await served.set_up()
        count = 100
        message = tell({"x": [0.25] * count, "y": [1.5] * count}, [2.0] * count)
        client.send(request("tell", {**message, "note": "ä" * 1_700_000}))  # 6 bytes each
        assert (await other.ask("ask"))["num_points"] == 1
        assert await client.answer() == {"trials_recorded": count, "model_data_added": count}
        wrong = await client.ask("tell", {"config": {"x": 1}, "note": "x" * 10_000_000})
        assert "'y' is missing" in wrong["server_error"]
        assert len(json.dumps(wrong)) < 5000


@on_uvloop
async def test_a_hundred_clients_of_one_experiment(journal: Path) -> None:
    async def one(served: Served) -> Mapping[str, Any]:
        client = await served.connect()
        await client.ask("resume", {"strat_id": 0})
        config = (await client.ask("ask"))["config"]
        assert await client.ask("tell", tell(config, 1)) == {
            "trials_recorded": 1,
            "model_data_added": 1,
        }
        assert isinstance(config, dict)
        return config

    async with asked(journal) as served:
        await served.set_up()
        points = await asyncio.gather(*(one(served) for _ in range(100)))
        assert len({json.dumps(point) for point in points}) == 100
        experiment = served.experiments.experiments[0]
        experiment.check()
        assert (experiment.asked, experiment.told, len(experiment.pending)) == (100, 100, 0)


@pytest.mark.slow
@on_uvloop
async def test_a_slow_fit_of_one_keeps_no_other_waiting(journal: Path) -> None:
    async with asked(journal, in_processes=True) as served:
        slow, pid = await asking(served)
        same = await served.connect()
        await same.ask("resume", {"strat_id": 0})
        other = await served.set_up()
        point = (await other.ask("ask"))["config"]
        assert (await other.ask("tell", tell(point, 1)))["trials_recorded"] == 1
        assert (await same.ask("tell", tell(point, 1)))["trials_recorded"] == 1
        assert (await same.ask("info"))["current_strat_data_pts"] == 1
        assert served.experiments.experiments[0].asked == 1
        os.kill(pid, signal.SIGCONT)
        assert (await slow.answer())["num_points"] == 1


@pytest.mark.slow
@on_uvloop
async def test_clients_that_leave_harm_nobody(journal: Path) -> None:
    async with asked(journal, in_processes=True) as served:
        client, pid = await asking(served)
        reset(client)
        quiet = await served.set_up()
        reset(quiet)
        half = await served.connect()
        half.send(request("setup", SETUP)[:100])
        half.close()
        os.kill(pid, signal.SIGCONT)
        again = await served.connect()
        await again.ask("resume", {"strat_id": 0})
        assert (await again.ask("ask"))["num_points"] == 1
        await until(lambda: served.server.clients == 1)


@on_uvloop
async def test_a_client_that_says_no_more_has_its_answers(journal: Path) -> None:
    async with asked(journal) as served:
        client = await served.connect()
        client.send(request("setup", SETUP) + request("ask") + b'{"type": "in')
        client.writer.write_eof()
        assert await client.answer() == {"strat_id": 0}
        assert (await client.answer())["num_points"] == 1
        assert await client.rest() == ""


@on_uvloop
async def test_a_message_that_does_not_get_on_ends_the_connection(journal: Path) -> None:
    async with asked(journal, timeouts=AepsychTimeouts(message_s=0.05)) as served:
        idle = await served.set_up()
        idle.send(b"\n")  # MATLAB's client ends its messages so
        slow = await served.set_up()
        slow.send(request("ask")[:-1])
        assert await slow.rest() == ""
        assert (await idle.ask("ask"))["num_points"] == 1


@on_uvloop
async def test_a_client_that_reads_no_answers_is_parted_with(journal: Path) -> None:
    async with asked(journal, timeouts=AepsychTimeouts(answer_s=0.2)) as served:
        client = await served.set_up()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own
        for _ in range(100):
            client.send(request("ask", {"num_points": 10_000}))
        other = await served.set_up()
        assert (await other.ask("ask"))["num_points"] == 1
        await until(lambda: served.server.clients == 1)
        assert served.experiments.experiments[0].asked < 1_000_000


@pytest.mark.slow
@on_uvloop
async def test_stop_lets_an_ask_end(journal: Path) -> None:
    async with asked(journal, in_processes=True) as served:
        client, pid = await asking(served)
        idle = await served.connect()
        client.send(request("info"))
        stopping = asyncio.create_task(served.server.stop(LIMIT_S))
        assert await idle.rest() == ""
        with pytest.raises(OSError, match="Connect"):
            await served.connect()
        os.kill(pid, signal.SIGCONT)
        assert (await client.answer())["num_points"] == 1
        assert await client.rest() == ""
        await stopping
        assert served.experiments.experiments[0].asked == 2


@pytest.mark.slow
@on_uvloop
async def test_stop_is_bounded(journal: Path) -> None:
    async with asked(journal, in_processes=True) as served:
        client, pid = await asking(served)
        deaf = await served.set_up()
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own
        for _ in range(20):
            deaf.send(request("ask", {"num_points": 10_000}))
        began = time.monotonic()
        await served.server.stop(0.05)
        # One process is stopped, one client does not read.
        assert time.monotonic() - began < LIMIT_S
        assert "shut down" in (await client.answer())["server_error"]
        assert await client.rest() == ""
        assert served.experiments.experiments[0].asked == 1
        with pytest.raises(ProcessLookupError):  # its work was cancelled
            os.kill(pid, 0)


@on_uvloop
async def test_a_port_that_is_taken(journal: Path) -> None:
    async with asked(journal) as served:
        server = AepsychServer(served.experiments, access=Access(None))
        with pytest.raises(Unavailable, match=r"cannot listen on 127.0.0.1.*port 0 picks"):
            await server.start(port=served.port)


class Wrong(Experiments):
    """Raises unexpected errors."""

    async def handle(self, session: Session, request: AepsychRequest) -> AepsychReply:
        raise ZeroDivisionError


@on_uvloop
async def test_a_mistake_of_ours_is_an_answer(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = AepsychServer(Wrong(journal), access=Access(None))
    port = int((await server.start()).rpartition(":")[2])
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    for _ in range(2):
        assert (await client.ask("info"))["server_error"] == INTERNAL_ERROR
    client.writer.transport.abort()
    await server.stop(0.0)
    assert "ZeroDivisionError" in caplog.text


@on_uvloop
async def test_idle_clients_cost_nothing(journal: Path) -> None:
    async with asked(journal) as served:
        clients = [await served.set_up() for _ in range(50)]
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.25, "the loop sleeps"
        assert (await clients[7].ask("ask"))["num_points"] == 1


@on_uvloop
async def test_one_clients_bytes_are_looked_at_in_a_turn(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_loop, turns = LoopTurns(), list[int]()
    feed = AepsychFramer.feed

    def noted(framer: AepsychFramer, data: bytes) -> None:
        turns.append(of_loop.number)
        feed(framer, data)

    async with asked(journal) as served:
        clients = [await served.connect() for _ in range(20)]
        await until(lambda: served.server.clients == 20)
        monkeypatch.setattr(AepsychFramer, "feed", noted)
        of_loop.count()
        for client in clients:
            descriptor = client.writer.get_extra_info("socket").fileno()
            assert os.write(descriptor, b'{"type":"' + b"x" * 30_000) > 30_000
        await until(lambda: len(turns) >= 20)
    assert len(set(turns[:20])) == 20
