"""nginx in front of a farm, as in docs/security.md: nginx runs as another user, with the token."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import umbridge
import urllib3

import farm
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from tests.support.coroutines import wait_until
from tests.support.restarted_farm import free_port
from tests.support.shell_page import ShellPage
from tests.support.time_limits import scaled

pytestmark = pytest.mark.root

PAGE = Path(__file__).parents[2] / "docs" / "security" / "nginx.md"
LIMIT_S = scaled(30.0)
WIDE = 300_000
"""Entries of an input whose body exceeds nginx's default limit."""

go_on = threading.Event()


class Slow(farm.Model):
    """Streams an answer, and the next one when told to."""

    name = "slow"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        return {"y": inputs["x"]}

    def stream(self, inputs: farm.Inputs, config: farm.Config) -> Iterator[Any]:
        yield {"y": inputs["x"]}
        assert go_on.wait(LIMIT_S)
        yield {"y": 2 * inputs["x"]}


@farm.model(inputs={"x": WIDE}, outputs={"y": WIDE})
def wide(x: Any) -> Any:
    """A model with a long input and a long output."""
    return 2 * x


@dataclass
class Proxy:
    """A farm with nginx in front of it."""

    url: str
    grpc: str
    direct: str


@contextmanager
def nginx(folder: Path, server: str) -> Iterator[None]:
    """Run nginx for the block with these servers; its workers run as www-data."""
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    folder.chmod(0o755)
    (folder / "nginx.conf").write_text(
        f"user www-data;\nworker_processes 1;\npid {folder}/pid;\ndaemon off;\n"
        f"error_log {folder}/error.log warn;\nevents {{}}\n"
        f"http {{\naccess_log {folder}/access.log;\n{server}\n}}\n"
    )
    command = [binary, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    subprocess.run([*command, "-t", "-q"], check=True, timeout=LIMIT_S)
    ports = [int(port) for port in re.findall(r"listen 127\.0\.0\.1:(\d+)", server)]
    with subprocess.Popen(command) as process:
        try:
            for port in ports:
                wait_until(partial(listens, port))
            yield
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def listens(port: int) -> bool:
    """Whether connections to the port are accepted."""
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Set up nginx as on the page, but on other ports, without TLS and with a plain password."""
    go_on.clear()
    if shutil.which("jq") is None:
        pytest.skip("needs jq (apt install jq)")
    (shown,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    http_port, grpc_port = free_port(), free_port()
    models = {"slow": Slow(), "wide": wide}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        settings = Settings(dir=folder / "run", port=0, grpc_port=0, workers=2)
        with running(Farm([], settings, objects=models)) as connection:
            (folder / "users").write_text("ann:{PLAIN}secret\n")
            (folder / "users").chmod(0o644)
            token = f'Authorization "Bearer {connection.token}";\n'
            (folder / "farm-token").write_text("# before the first start of the farm\n")
            (folder / "farm-grpc-token").write_text(f"grpc_set_header {token}")
            (folder / "farm-grpc-token").chmod(0o600)
            for pattern, instead in (
                (r"listen 443 ssl", f"listen 127.0.0.1:{http_port}"),
                (r"listen 8443 ssl", f"listen 127.0.0.1:{grpc_port}"),
                (r" *ssl_\w+ [^;]*;\n", ""),
                (r"/etc/nginx/", f"{folder}/"),
                (r"127\.0\.0\.1:4242", connection.url.removeprefix("http://")),
                (r"127\.0\.0\.1:8001", connection.grpc),
            ):
                assert re.search(pattern, shown), pattern
                shown = re.sub(pattern, instead, shown)
            url = f"http://127.0.0.1:{http_port}"
            with nginx(folder, shown):
                assert ask(url, headers=ANN).status == 401  # farm's: nginx has no token yet
                before = workers_of_nginx(folder)
                store_the_token(folder)
                # Workers with the old settings take connections until they end.
                wait_until(lambda: not before & workers_of_nginx(folder))
                wait_until(lambda: ask(url, headers=ANN).status == 200)
                yield Proxy(url, f"127.0.0.1:{grpc_port}", connection.url)


def workers_of_nginx(folder: Path) -> set[int]:
    """Return the processes that answer for nginx now."""
    master = (folder / "pid").read_text().strip()
    return {int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()}


def store_the_token(folder: Path) -> None:
    """Type the page's lines that store the token, as root, for nginx in this folder."""
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    instead = {
        "farm-run": f"{folder}/run",
        "sudo nginx": f"{binary} -p {folder} -c {folder}/nginx.conf",
        "sudo ": "",
        "/etc/nginx": str(folder),
    }
    with ShellPage("docs/security.md", folder, instead) as page:
        page.type_next("token=")
    stored = (folder / "farm-token").stat()
    assert (stored.st_uid, stored.st_mode & 0o777) == (0, 0o600)


def ask(url: str, **options: Any) -> urllib3.BaseHTTPResponse:
    """Send a request for an evaluation."""
    body = {"name": "slow", "input": [[3]]}
    return urllib3.request(
        "POST", f"{url}/Evaluate", json=body, timeout=LIMIT_S, retries=False, **options
    )


ANN = urllib3.make_headers(basic_auth="ann:secret")


def test_who_has_no_password_gets_as_far_as_nginx(proxy: Proxy) -> None:
    for headers in ({}, urllib3.make_headers(basic_auth="ann:wrong")):
        answer = ask(proxy.url, headers=headers)
        assert answer.status == 401
        assert b"nginx" in answer.data
    answer = ask(proxy.url, headers=ANN)
    assert (answer.status, answer.json()) == (200, {"output": [[3.0]]})


def test_the_users_own_programs_go_on_without_it(proxy: Proxy) -> None:
    assert ask(proxy.direct).json() == {"output": [[3.0]]}


def test_a_page_through_nginx_is_farms_own_and_another_is_not(proxy: Proxy) -> None:
    for origin, status in ((proxy.url, 200), ("http://evil.example", 403)):
        assert ask(proxy.url, headers={**ANN, "Origin": origin}).status == status


def test_large_bodies_pass_both_ways(proxy: Proxy) -> None:
    x = np.random.default_rng(1).random(WIDE)
    body = json.dumps({"name": "wide", "input": [x.tolist()]}).encode()
    assert len(body) > 2 << 20
    answer = urllib3.request(
        "POST", f"{proxy.url}/Evaluate", body=body, headers=ANN, timeout=LIMIT_S, retries=False
    )
    assert answer.status == 200
    np.testing.assert_array_equal(answer.json()["output"][0], 2 * x)


def test_answers_in_parts_come_as_they_are_made(proxy: Proxy) -> None:
    answer = urllib3.request(
        "POST",
        f"{proxy.url}/v2/models/slow/generate_stream",
        json={"x": [3]},
        headers=ANN,
        timeout=LIMIT_S,
        retries=False,
        preload_content=False,
    )
    first = answer.read1()
    assert first.startswith(b"data:")
    assert b"6.0" not in first
    go_on.set()
    assert b"6.0" in answer.read()


def test_unchanged_clients_go_through_it(proxy: Proxy) -> None:
    ask(proxy.url, headers=ANN)  # wait until it is up
    model = umbridge.HTTPModel(proxy.url.replace("http://", "http://ann:secret@"), "slow")
    assert model([[3.0]]) == [[3.0]]


def test_grpc_goes_through_it(proxy: Proxy) -> None:
    with grpc.insecure_channel(proxy.grpc) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        basic = ANN["authorization"]
        said = live(b"", metadata=[("authorization", basic)], timeout=LIMIT_S, wait_for_ready=True)
        assert said == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as refused:
            live(b"", timeout=LIMIT_S)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_nginx_without_the_token_opens_nothing() -> None:
    """Otherwise requests of a local proxy that does not identify itself would be accepted."""
    port = free_port()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        settings = Settings(dir=folder / "run", port=0)
        with running(Farm([], settings, objects={"slow": Slow()})) as connection:
            location = f"location / {{ proxy_pass {connection.url}; }}"
            with nginx(folder, f"server {{ listen 127.0.0.1:{port}; {location} }}"):
                answer = ask(f"http://127.0.0.1:{port}")
                assert answer.status == 401
                assert answer.json()["error"]["message"].startswith("no token was given")
