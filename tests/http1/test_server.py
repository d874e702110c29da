"""The HTTP server: its sockets, start and shutdown, and bytes that are not HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import urllib3
import uvloop

import farm
from farm.errors import Unavailable
from farm.http1.access import Access
from farm.http1.asgi import answer_json
from farm.http1.server import HttpServer, Traffic
from farm.machine.listener import ACCEPTED_IN_A_TURN, listen_unix
from farm.protocols.interface import Endpoints
from farm.server.doors import Router
from farm.settings import Settings
from tests.protocols.models import Gate
from tests.support.bare_server import rest_of
from tests.support.front_door import WAIT_S, front_door, read_answer, until

BODY = b'{"name": "slow", "input": [[3]]}'
ASK = b"POST /Evaluate HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
INFO = b"GET /Info HTTP/1.1\r\nHost: a\r\n\r\n"


async def unasked(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


nothing = Router(Endpoints(otherwise=unasked), Access(None))


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            Unavailable, match=f"cannot listen on 127.0.0.1:{port}: Address already"
        ):
            asyncio.run(HttpServer(nothing).start(port=port))


def by_unix(path: Path, request: bytes) -> tuple[int, bytes]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        connection.sendall(request)
        return read_answer(connection)


def test_a_unix_socket_is_served_too(tmp_path: Path) -> None:
    path = tmp_path / "farm.sock"
    settings = Settings(port=0, unix=path)
    model = farm.model(inputs={"x": 1}, outputs={"y": 1}, name="twice")(lambda x: 2 * x)
    with front_door({"twice": model}, token="secret", settings=settings) as door:
        body = b'{"name": "twice", "input": [[3]]}'
        ask = b"POST /Evaluate HTTP/1.1\r\nHost: any\r\nContent-Length: %d\r\n\r\n%b"
        assert by_unix(path, ask % (len(body), body)) == (200, b'{"output":[[6.0]]}')
        assert by_unix(path, b"GET /farm/models HTTP/1.1\r\nHost: any\r\n\r\n")[0] == 200
        status, metadata = by_unix(path, b"GET /graphpipe/twice HTTP/1.1\r\nHost: any\r\n\r\n")
        assert (status, json.loads(metadata)["Name"]) == (200, "twice")
        forwarded = b"GET /Info HTTP/1.1\r\nHost: any\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"
        assert by_unix(path, forwarded)[0] == 401
        assert door.ask("GET", "/Info").status == 200  # by TCP as before
    assert not path.exists()


def test_a_unix_socket_that_is_taken_takes_no_port(tmp_path: Path) -> None:
    path = tmp_path / "farm.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with listen_unix(str(path)):
        with pytest.raises(Unavailable, match=f"cannot listen on unix:{path}: Address already"):
            asyncio.run(HttpServer(nothing).start(port=port, unix=path))
        with socket.create_server(("127.0.0.1", port)):
            pass
    assert path.exists(), "it is another's"


def test_it_raises_the_limit_of_open_files_leaves_signals_alone_and_stops_twice() -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def start_and_stop() -> None:
        before, server = handlers(), HttpServer(nothing)
        await server.stop()
        await server.start()
        assert handlers() == before
        await server.stop(0.1)
        await server.stop(0.1)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        asyncio.run(start_and_stop())
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_request_that_runs_is_finished_while_no_new_one_is_taken() -> None:
    slow = Gate()
    with front_door({"slow": slow}) as door, door.connect() as running, door.connect() as idle:
        idle.sendall(INFO)
        assert read_answer(idle)[0] == 200
        running.sendall(ASK)
        assert slow.begun.wait(WAIT_S)
        stopping = asyncio.run_coroutine_threadsafe(door.server.stop(grace_s=WAIT_S), door.loop)
        assert idle.recv(1) == b""  # an idle connection is closed at once
        with pytest.raises(ConnectionRefusedError):
            door.connect()
        slow.open.set()
        assert read_answer(running) == (200, b'{"output":[[3.0]]}')
        assert running.recv(1) == b""
        stopping.result(WAIT_S)


def test_a_request_that_outlasts_the_grace_is_answered_with_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Gate()
    with front_door({"slow": slow}) as door, door.connect() as running, door.connect() as half:
        half.sendall(ASK[:-5])  # a body that never ends
        running.sendall(ASK)
        assert slow.begun.wait(WAIT_S)
        door.wait(door.server.stop(grace_s=0.2))  # does not wait as long as the model runs
        for connection in (running, half):
            status, body = read_answer(connection)
            assert (status, json.loads(body)["error"]["type"]) == (503, "Unavailable")
            assert connection.recv(1) == b""
        slow.open.set()
    assert caplog.text == ""


def test_points_that_outlast_the_grace_are_cut_off_so_that_it_is_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Gate()
    with front_door({"slow": slow}) as door:
        response = door.connections.request(
            "POST",
            f"{door.url}/farm/models/slow/evaluate",
            json={"inputs": [[[3]]]},
            preload_content=False,
        )
        assert slow.begun.wait(WAIT_S)
        door.wait(door.server.stop(grace_s=0.1))
        with pytest.raises(urllib3.exceptions.ProtocolError):
            response.read()
        slow.open.set()
    assert "Traceback" not in caplog.text


def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    @farm.model(inputs={"x": 1}, outputs={"y": 10**6})
    def large(x: Any) -> Any:
        return [[x[0] / 7] * 10**6]

    with front_door({"large": large}) as door, door.connect() as deaf:
        deaf.sendall(ASK.replace(b"slow", b"large").replace(b": 32", b": 33"))
        until(lambda: door.snapshot()["done"] == 1, "the answer is on its way")
        door.wait(door.server.stop(grace_s=0.2))
        assert 0 < len(rest_of(deaf)) < 10**7  # the bytes on their way, and then the end


def test_last_words_are_waited_for() -> None:
    async def serve() -> bytes:
        asked = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            asked.set()
            try:
                await asyncio.sleep(WAIT_S)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)
            await answer_json(send, 503, b"{}")

        server = HttpServer(Router(Endpoints(otherwise=app), Access(None)))
        reader, writer = await asyncio.open_connection(*await server.start())
        writer.write(INFO)
        await asked.wait()
        await server.stop(0.1)
        answer = await reader.read()
        writer.close()
        return answer

    assert asyncio.run(serve()).startswith(b"HTTP/1.1 503 ")


def test_connections_that_are_torn_down_do_no_harm() -> None:
    with front_door({"slow": Gate()}) as door:
        for sent in (b"", b"GET /Inf", ASK[:40], ASK):
            connection = door.connect()
            connection.sendall(sent)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        assert door.ask("GET", "/Info").status == 200


def test_a_burst_of_connections_is_accepted_in_parts() -> None:
    async def burst() -> list[int]:
        server, seen = HttpServer(nothing), [0]
        address = await server.start()
        with contextlib.ExitStack() as stack:
            for _ in range(40):  # the loop is blocked meanwhile
                stack.enter_context(socket.create_connection(address))
            assert server.connections is not None
            while len(server.connections) < 40:
                await asyncio.sleep(0)
                seen.append(len(server.connections))
            await server.stop(0.1)
        return [after - before for before, after in pairwise(seen)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        accepted = runner.run(burst())
    assert max(accepted) == ACCEPTED_IN_A_TURN


FEW_FILES = """
import asyncio, resource, uvloop
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from farm.http1.access import Access
from farm.protocols.interface import Endpoints
from farm.server.doors import Router
from farm.http1.server import HttpServer

async def serve():
    doors = {"/x": lambda request, answer: answer(200, b"answered")}
    address = await HttpServer(Router(Endpoints(doors), Access(None))).start()
    print(address[1], flush=True)
    await asyncio.get_running_loop().create_future()

uvloop.run(serve())
"""


def test_clients_that_do_nothing_do_not_use_up_the_files() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", FEW_FILES], stdout=subprocess.PIPE) as program,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(program.kill)
        assert program.stdout is not None
        address = ("127.0.0.1", int(program.stdout.readline()))
        for _ in range(300):
            stack.enter_context(socket.create_connection(address, timeout=WAIT_S))
        with socket.create_connection(address, timeout=WAIT_S) as one_more:
            one_more.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
            assert read_answer(one_more) == (200, b"answered")


def test_counts_of_bytes_are_json_data() -> None:
    assert Traffic(received=3).shown() == {"received": 3, "sent": 0}
