"""Other local users and web pages in the owner's browser, at every open port and socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

import farm
from farm.http1.access import Access
from farm.protocols.kserve.rest.paths import METHODS, PATHS, POST
from farm.protocols.mip.address import MipAddress
from farm.protocols.umbridge.codec import Endpoint
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings, SettingsError
from tests.support.coroutines import on_uvloop
from tests.support.experiment_clients import asked, request
from tests.support.front_door import Door, front_door, read_answer
from tests.support.mip_farm import PING, PONG, Double, doubled, mip_served
from tests.support.mip_farm import request as mip_request
from tests.support.strangers import connect_as_stranger, stranger, wait_for_disowned

runs: list[float] = []


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def recorded(x: Any) -> Any:
    """Records that it was run."""
    runs.append(float(x[0]))
    return x


@pytest.fixture
def door() -> Iterator[Door]:
    """Run a front door with a token, as every farm has one."""
    runs.clear()
    with front_door({"recorded": recorded}, token="t0ken") as made:
        yield made


def evaluate(*headers: str) -> bytes:
    """Build a UM-Bridge request that a web page may send without a preflight request."""
    body = b'{"name": "recorded", "input": [[7]]}'
    lines = ["POST /Evaluate HTTP/1.1", "Host: localhost:4242", "Content-Type: text/plain"]
    lines += [f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


HALF = b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"

UNLOAD = b"POST /v2/repository/models/recorded/unload HTTP/1.1\r\nHost: localhost\r\n"
UNLOAD += b"Content-Length: 0\r\n\r\n"


def status(answer: bytes) -> int:
    """Return the status of an HTTP answer."""

    class Bytes:
        def makefile(self, mode: str) -> BytesIO:
            return BytesIO(answer)

    response = HTTPResponse(cast(Any, Bytes()))
    response.begin()
    return response.status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:8888", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example", "Authorization": "Bearer t0ken"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/models/recorded/unload"),
        ("POST", "/v2/models/recorded/infer"),
        ("POST", "/v2/models/recorded/generate_stream"),
        ("POST", "/Evaluate"),
        ("POST", "/graphpipe/recorded"),
        ("POST", "/"),
        ("POST", "/farm/models/recorded/evaluate"),
        ("GET", "/farm/status"),
        ("GET", "/metrics"),
        ("GET", "/"),
    ],
)
def test_a_web_page_runs_and_unloads_nothing(
    door: Door, method: str, path: str, headers: dict[str, str]
) -> None:
    body = b'{"name": "recorded", "input": [[7]], "x": [7]}' if method == "POST" else None
    sent = {"Content-Type": "text/plain", **headers}
    answer = door.ask(method, path, body, sent)
    assert answer.status == 403, answer.data
    assert runs == []
    assert door.ask("GET", "/v2/models/recorded/ready").status == 200
    assert door.ask("POST", "/Evaluate", {"name": "recorded", "input": [[1]]}).status == 200


IMAGE = {"Accept": "image/*", "Referer": "http://evil.example/"}
"""A page's request for an image. Older browsers add neither `Origin` nor `Sec-Fetch-Site`."""


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/metrics", "/farm/status", "/farm/failures", "/farm/models/recorded"),
        *("/Info", "/v2/health/ready", "/v2/models/recorded", "/graphpipe/recorded"),
        "/farm/progress?kind=sweep&name=report",
    ],
)
def test_an_image_of_a_web_page_may_be_what_a_program_reads(door: Door, path: str) -> None:
    assert door.ask("GET", path, headers={**IMAGE, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert door.ask("GET", "/farm/progress").json() == []
    assert door.ask("GET", path, headers=IMAGE).status == 200
    assert runs == []


def test_an_image_of_a_web_page_is_no_command(door: Door) -> None:
    commands = [
        *(
            f"/v2/{p.replace('*', 'recorded')}"
            for p, endpoint in PATHS
            if "models/*" in p and METHODS[endpoint] is POST
        ),
        *(endpoint for endpoint in Endpoint if endpoint is not Endpoint.INFO),
        *("/v1/models/recorded:predict", "/farm/models/recorded/evaluate", "/farm/cancel"),
    ]
    assert len(commands) == 6 + 7 + 3
    for path in commands:
        for query in ("", "?name=recorded&input=7&x=7"):
            assert door.ask("GET", path + query, headers=IMAGE).status in (404, 405), path
    assert runs == []
    assert door.ask("GET", "/v2/models/recorded/ready").status == 200


@pytest.mark.root
def test_another_user_needs_the_token_over_http(door: Door) -> None:
    for headers, expected, ran in (
        ([], 401, []),
        (["Authorization: Bearer wrong"], 401, []),
        (["Authorization: Bearer t0ken"], 200, [7.0]),
    ):
        with connect_as_stranger(*door.address) as other:
            other.send(evaluate(*headers))
            assert status(other.read()) == expected
        assert runs == ran


@pytest.mark.root
def test_another_user_who_sends_and_closes_runs_nothing(door: Door) -> None:
    """The kernel reports uid 0 for a closed socket, and this farm runs as uid 0."""
    closed = threading.Event()
    door.loop.call_soon_threadsafe(closed.wait)  # accepted after the client has closed it
    with stranger() as other:
        for _ in range(20):
            other.connect(door.address)
            other.send(UNLOAD)
            other.close()
    wait_for_disowned(door.address[1], 20)
    closed.set()
    assert door.ask("POST", "/Evaluate", {"name": "recorded", "input": [[1]]}).status == 200
    assert door.ask("GET", "/v2/models/recorded/ready").status == 200


@pytest.mark.root
def test_another_users_connections_keep_nobody_out() -> None:
    """Each connection was refused and has not sent the rest of its request."""
    with front_door({"recorded": recorded}, token="t0ken", most_connections=8) as made:
        kept = made.connect()
        with stranger() as other, kept:
            kept.sendall(evaluate().replace(b"Connection: close\r\n", b""))
            assert read_answer(kept)[0] == 200
            for _ in range(20):
                other.connect(made.address)
                other.send(HALF)
                other.read(b"}")
            assert made.ask("POST", "/Evaluate", {"name": "recorded", "input": [[1]]}).status == 200
            kept.sendall(evaluate())
            assert read_answer(kept)[0] == 200


HTTP = b"POST / HTTP/1.1\r\nHost: localhost:5555\r\nContent-Type: text/plain\r\n\r\n"


@on_uvloop
async def test_the_body_of_an_http_request_runs_no_experiment(tmp_path: Path) -> None:
    async with asked(tmp_path / "experiments.db") as served:
        client = await served.connect()
        client.send(HTTP + request("setup", {"config_str": "[common]"}) + request("info"))
        assert '"server_error":' in await client.rest()
        other = await served.connect()
        assert "no experiment" in (await other.ask("info"))["server_error"]
        assert served.experiments.experiments == {}


@on_uvloop
async def test_the_body_of_an_http_request_runs_no_model_over_mip() -> None:
    model = Double()
    async with mip_served(model) as served:
        client = await served.connect()
        client.send(HTTP, mip_request("[3]"))
        answer = await client.rest()
        assert answer[:4] == bytes([0, 0, 0, 0])  # an error of the protocol
        assert len(answer) == 8 + int.from_bytes(answer[4:8])
        assert served.dispatcher.snapshot()["done"] == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder that other users can enter, unlike the folders of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.root
@on_uvloop
async def test_another_user_of_mip_gets_an_error_and_no_more(open_folder: Path) -> None:
    path = open_folder / "mip"
    for address in (MipAddress("double", "127.0.0.1"), MipAddress("double", path=str(path))):
        async with mip_served(Double(), address=address) as served:
            at = served.server.address
            with stranger() as other:
                if at.path:
                    path.chmod(0o666)  # even then
                await asyncio.to_thread(other.connect, at.path or (at.host, at.port))
                await asyncio.to_thread(other.send, mip_request("[3]"))
                answer = await asyncio.to_thread(other.read)
            assert answer[:4] == bytes([0, 0, 5, 0])
            assert b"for programs of user" in answer
            assert len(answer) == 8 + int.from_bytes(answer[4:8])
            assert served.dispatcher.snapshot()["done"] == 0
            assert await (await served.connect()).ask(mip_request("[3]")) == doubled(3)


@pytest.mark.root
@on_uvloop
async def test_another_user_of_experiments_gets_an_error_and_no_more(tmp_path: Path) -> None:
    setup = request("setup", {"config_str": "[common]\nparnames = [x]"})
    async with asked(tmp_path / "experiments.db") as served:
        with stranger() as other:
            await asyncio.to_thread(other.connect, ("127.0.0.1", served.port))
            await asyncio.to_thread(other.send, setup)
            answer = await asyncio.to_thread(other.read)
            assert b"for programs of user" in answer
            assert answer.count(b"server_error") == 1
            # The event loop is blocked until only messages of a departed client are queued.
            other.connect(("127.0.0.1", served.port))
            other.send(setup)
            other.close()
            wait_for_disowned(served.port)
        assert (await (await served.connect()).ask("info"))["server_error"]
        assert served.experiments.experiments == {}


@pytest.mark.root
@pytest.mark.parametrize("insecure", [False, True])
def test_a_farm_serves_others_without_a_token_only_if_told_to(
    tmp_path: Path, insecure: bool
) -> None:
    settings = Settings(
        dir=tmp_path / "run",
        port=0,
        options={"mip": ("127.0.0.1:0",), "aepsych": "127.0.0.1:0"},
        insecure=insecure,
    )
    with running(Farm([], settings, objects={"double": Double()})) as connection:
        for address, asked_for, answer in (
            (next(iter(connection.addresses["mip"])).removeprefix("tcp://"), PING, PONG),
            (connection.addresses["aepsych"], request("info"), b"no experiment"),
        ):
            host, port = address.split(":")
            with connect_as_stranger(host, int(port)) as other:
                other.send(asked_for + request("exit"))
                said = other.read()
            assert (answer in said) is insecure
            assert (b"for programs of user" in said) is not insecure


@on_uvloop
async def test_insecure_lets_everybody_in(tmp_path: Path) -> None:
    everybody = Access(None)
    async with mip_served(Double(), access=everybody) as served:
        assert await (await served.connect()).ask(PING) == PONG
    async with asked(tmp_path / "experiments.db", access=everybody) as experiments:
        assert "exp_id" in await (await experiments.set_up()).ask("info")


def test_where_everybody_shows_a_token_no_protocol_without_one_listens(tmp_path: Path) -> None:
    for doors in ({"mip": ("127.0.0.1:0",)}, {"aepsych": "127.0.0.1:0"}):
        with pytest.raises(SettingsError, match="auth is 'always'"):
            Farm([], Settings(dir=tmp_path, auth="always", options=doors))
        Farm([], Settings(dir=tmp_path, auth="always", insecure=True, options=doors))


def test_where_everybody_shows_a_token_the_socket_file_is_the_users_still(tmp_path: Path) -> None:
    where = str(tmp_path / "mip")
    settings = Settings(
        dir=tmp_path / "run", port=0, auth="always", options={"mip": (f"double=unix:{where}",)}
    )
    with running(Farm([], settings, objects={"double": Double()})) as connection:
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.settimeout(20)
            client.connect(where)
            client.sendall(PING)
            assert client.recv(100) == PONG
        address = connection.url.removeprefix("http://").split(":")
        with closing(socket.create_connection((address[0], int(address[1])), 20)) as client:
            client.sendall(evaluate())
            assert client.recv(100).startswith(b"HTTP/1.1 401 ")


@pytest.mark.root
def test_another_user_is_no_worker_even_where_the_socket_is_open_to_all(
    open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(dir=open_folder / "run", port=0)
    with running(Farm([], settings, objects={"double": Double()})):
        path = str(open_folder / "run" / "farm.sock")
        os.chmod(open_folder / "run", 0o755)
        os.chmod(path, 0o666)
        with stranger() as other:
            other.connect(path)
            assert other.read() == b""
    assert "refused user 65534 at" in caplog.text


OVER_GRPC = """
import os, sys, grpc, grpc._channel  # what it imports, this user may not be able to read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
channel = grpc.insecure_channel("127.0.0.1:" + sys.argv[1])
live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
for token in ("", "wrong", sys.argv[2]):
    metadata = [("authorization", "Bearer " + token)] if token else []
    try:
        print(live(b"", metadata=metadata, timeout=20))
    except grpc.RpcError as error:
        print(error.code().name)
"""


def test_a_web_page_calls_nothing_over_grpc(tmp_path: Path) -> None:
    """No current browser can do this; one that could would send the page's origin."""
    settings = Settings(dir=tmp_path / "run", port=0, grpc_port=0)
    with running(Farm([], settings, objects={"double": Double()})) as connection:
        own = f"http://{connection.grpc}"
        with grpc.insecure_channel(connection.grpc) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            for page in ({}, {"origin": own}, {"sec-fetch-site": "same-origin"}):
                assert live(b"", metadata=list(page.items()), timeout=20) == b"\x08\x01"
            for page in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
                for token in ({}, {"authorization": f"Bearer {connection.token}"}):
                    with pytest.raises(grpc.RpcError) as refused:
                        live(b"", metadata=[*page.items(), *token.items()], timeout=20)
                    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.root
def test_another_user_needs_the_token_over_grpc(tmp_path: Path) -> None:
    settings = Settings(dir=tmp_path / "run", port=0, grpc_port=0)
    with running(Farm([], settings, objects={"double": Double()})) as connection:
        port = connection.grpc.rpartition(":")[2]
        command = [sys.executable, "-c", OVER_GRPC, port, connection.token]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert said.stdout.split() == ["UNAUTHENTICATED", "UNAUTHENTICATED", r"b'\x08\x01'"]
