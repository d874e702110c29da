"""Popular HTTP/1.1 clients against the front door: keep-alive, large and compressed bodies,
uploads of unknown length, refusals in the middle of a body."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
import urllib3

import farm
from farm.settings import Settings
from tests.support.front_door import WAIT_S, Door, front_door

LIMIT = 4_000_000
POINTS = 100_000
SMALL = json.dumps({"name": "total", "input": [[1.0, 2.0]]}).encode()
LARGE = json.dumps({"name": "total", "input": [[1.5] * POINTS]}).encode()
TOO_LARGE = b" " * (LIMIT + 1)
TOTALS = [({"output": [[3.0]]}, SMALL), ({"output": [[1.5 * POINTS]]}, LARGE)]


@farm.model(inputs={"x": -1}, outputs={"y": 1})
def total(x: Any) -> Any:
    return x.sum()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    path = tmp_path_factory.mktemp("unix") / "farm.sock"
    settings = Settings(port=0, unix=path, max_body_bytes=LIMIT)
    with front_door({"total": total}, settings=settings) as opened:
        yield opened


def in_parts(body: bytes) -> Iterator[bytes]:
    """Yield the body in parts, for an upload of unknown length."""
    for at in range(0, len(body), 10_000):
        yield body[at : at + 10_000]


def test_requests(door: Door) -> None:
    url = f"{door.url}/Evaluate"
    with requests.Session() as session:
        for expected, body in TOTALS:
            for sent in (body, in_parts(body)):
                assert session.post(url, data=sent, timeout=WAIT_S).json() == expected
            packed = gzip.compress(body)
            headers = {"Content-Encoding": "gzip"}
            answer = session.post(url, data=packed, headers=headers, timeout=WAIT_S)
            assert answer.json() == expected
        assert session.head(f"{door.url}/Info", timeout=WAIT_S).headers["content-length"] != "0"
        assert session.post(url, data=TOO_LARGE, timeout=WAIT_S).status_code == 413
        assert session.post(url, data=in_parts(TOO_LARGE), timeout=WAIT_S).status_code == 413
        assert session.post(url, data=SMALL, timeout=WAIT_S).json() == {"output": [[3.0]]}


def test_urllib3_and_urllib(door: Door) -> None:
    url = f"{door.url}/Evaluate"
    with urllib3.PoolManager(retries=False) as pool:
        for expected, body in TOTALS:
            assert pool.request("POST", url, body=body).json() == expected
            assert pool.request("POST", url, body=in_parts(body), chunked=True).json() == expected
        assert pool.request("POST", url, body=TOO_LARGE).status == 413
    for expected, body in TOTALS:
        with urllib.request.urlopen(url, body, timeout=WAIT_S) as answer:
            assert json.load(answer) == expected


def test_httpx_by_tcp_and_at_a_unix_socket(door: Door) -> None:
    import httpx

    url = f"{door.url}/Evaluate"
    with httpx.Client(timeout=WAIT_S) as client:
        for expected, body in TOTALS:
            assert client.post(url, content=body).json() == expected
            assert client.post(url, content=in_parts(body)).json() == expected
        assert client.options(url).status_code == 405
    transport = httpx.HTTPTransport(uds=str(door.server.unix))
    with httpx.Client(transport=transport, timeout=WAIT_S) as client:
        for expected, body in TOTALS:
            assert client.post("http://localhost/Evaluate", content=body).json() == expected


def test_aiohttp_with_many_at_once(door: Door) -> None:
    async def call() -> None:
        async with aiohttp.ClientSession() as session:

            async def one(expected: Any, body: bytes) -> None:
                async with session.post(
                    f"{door.url}/Evaluate", data=body, expect100=True
                ) as answer:
                    assert await answer.json() == expected

            await asyncio.gather(*(one(*TOTALS[n % 20 == 0]) for n in range(100)))

    asyncio.run(call())


def test_the_standard_library_on_one_connection(door: Door) -> None:
    connection = http.client.HTTPConnection(*door.address, timeout=WAIT_S)
    for expected, body in TOTALS * 2:
        connection.request("POST", "/Evaluate", body)
        assert json.load(connection.getresponse()) == expected
    connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--http1.0"],
        ["--http2"],  # it requests an upgrade and then continues in HTTP/1.1
        ["--header", "Transfer-Encoding: chunked"],
        ["--header", "Expect: 100-continue"],
        ["--compressed"],
        ["--request-target", "http://localhost/Evaluate"],
    ],
    ids=" ".join,
)
def test_curl(door: Door, options: list[str], tmp_path: Path) -> None:
    for expected, body in TOTALS:
        (tmp_path / "body").write_bytes(body)
        url = f"{door.url}/Evaluate"
        command = ["curl", "--silent", "--show-error", "--max-time", str(WAIT_S), *options]
        command += [
            "--data-binary",
            f"@{tmp_path / 'body'}",
            url,
            url,
        ]  # twice: reuses the connection
        done = subprocess.run(command, capture_output=True, check=True)
        answers = done.stdout.replace(b"}{", b"}\n{").splitlines()
        assert [json.loads(answer) for answer in answers] == [expected] * 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_is_told_that_a_body_is_too_long_before_it_sends_it(
    door: Door, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(TOO_LARGE)
    command = ["curl", "--silent", "--max-time", str(WAIT_S), "--write-out", "\n%{size_upload}"]
    command += ["--header", "Expect: 100-continue", "--expect100-timeout", str(WAIT_S)]
    command += ["--data-binary", f"@{tmp_path / 'body'}", f"{door.url}/Evaluate"]
    done = subprocess.run(command, capture_output=True, check=True)
    answer, _, uploaded = done.stdout.rpartition(b"\n")
    assert json.loads(answer)["error"]["type"] == "TooLarge"
    assert uploaded == b"0"
