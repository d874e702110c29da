"""`farm serve --grpc-port`, run as a user does."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.certificates import certificate
from tests.support.dispatcher_farm import BEAM, LIMIT_S, environment, run_farm, serving
from tests.support.time_limits import scaled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beam.py").write_text(BEAM)
    return tmp_path


def bent(client: triton.InferenceServerClient) -> list[float]:
    inputs = []
    for name, values in (("E", [1.0, 2.0, 4.0]), ("load", [8.0])):
        inputs.append(triton.InferInput(name, [len(values)], "FP64"))
        inputs[-1].set_data_from_numpy(np.array(values))
    found: list[float] = client.infer("beam", inputs).as_numpy("bent").tolist()
    return found


def test_its_address_is_said_and_an_idle_stream_does_not_keep_it_up(folder: Path) -> None:
    with serving(folder, "beam.py", "--grpc-port", "0") as served:
        address = served.connection.grpc
        assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
        with grpc.insecure_channel(address) as channel:  # asks as Kubernetes does
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=LIMIT_S) == b"\x08\x01"
        with triton.InferenceServerClient(address) as client:
            assert bent(client) == [8.0, 4.0, 2.0]
            client.start_stream(lambda result, error: None)
            begun = time.monotonic()
            status, out, errors = served.stop()
            assert time.monotonic() - begun < scaled(10)
    assert status == 0
    assert f"gRPC for KServe v2 clients at {address}\n" in out
    assert errors == "farm stops; Ctrl-C again to hurry\n"


def test_tls(folder: Path) -> None:
    tls = certificate(folder)
    options = ("--grpc-tls-cert", "cert.pem", "--grpc-tls-key", "key.pem")
    with serving(folder, "beam.py", "--grpc-port", "0", *options) as served:
        address = served.connection.grpc
        with triton.InferenceServerClient(
            address, ssl=True, root_certificates=str(tls.certificate)
        ) as client:
            assert bent(client) == [8.0, 4.0, 2.0]
        with triton.InferenceServerClient(address) as plain, pytest.raises(Exception, match="UNAV"):
            plain.is_server_live(client_timeout=5)
        _, out, _ = served.stop()
    assert f"gRPC for KServe v2 clients with TLS at {address}\n" in out


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, errors = run_farm(
            "serve", "beam.py", "--port", "0", "--grpc-port", port, cwd=folder
        )
    assert status == 2
    assert "Address already in use; --grpc-port 0 picks a free one" in errors


def test_without_a_package_the_extra_is_named_and_nothing_is_started(folder: Path) -> None:
    program = (
        "import sys; sys.modules['google.protobuf'] = None; from farm.cli import main;"
        "main(['serve', 'beam.py', '--port', '0', '--grpc-port', '0'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    expected = 'farm: error: gRPC needs the package protobuf: pip install "modelfarm[kserve]"\n'
    assert done.stderr == expected
    assert not list(folder.glob("farm-run/logs/*"))
