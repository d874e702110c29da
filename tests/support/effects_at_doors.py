"""How clients see the settings of HTTP and of protocols; each function checks one of them."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl

import grpc
import kubemo

from farm.experiment.state.journal import read_journal
from farm.protocols.mip.packets import HEAD, REQUEST, VERSION, PacketKind
from tests.support.dispatcher_farm import LIMIT_S
from tests.support.experiment_clients import SETUP, request
from tests.support.front_door import read_answer
from tests.support.graphpipe_bytes import METADATA_REQUEST
from tests.support.mip_farm import PING, PONG
from tests.support.setting_ways import There


def listens(host: str, port: int) -> bool:
    """Whether a server accepts connections there."""
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((host, port), LIMIT_S).close()
        return True
    return False


def host(there: There) -> None:
    port = int(there.connection.url.rpartition(":")[2])
    assert [listens(host, port) for host in (there.values["host"], "127.0.0.1")] == [True, False]


def port(there: There) -> None:
    assert listens(there.values["host"], there.values["port"])


def unix(there: There) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(there.limit_s)
        connection.connect(str(there.folder / there.values["unix"]))
        token = there.connection.token
        head = f"GET /Info HTTP/1.1\r\nHost: farm\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(head.encode())
        assert read_answer(connection)[0] == 200


def grpc_port(there: There) -> None:
    assert listens(there.values["host"], there.values["grpc_port"])


def grpc_tls_cert(there: There) -> None:
    address = there.values["host"], there.values["grpc_port"]
    shown = ssl.get_server_certificate(address, timeout=there.limit_s)
    assert shown.split() == (there.folder / "cert.pem").read_text().split()


def grpc_tls_key(there: There) -> None:
    """Only the holder of the key can answer under the certificate."""
    trusted = grpc.ssl_channel_credentials((there.folder / "cert.pem").read_bytes())
    name = ("grpc.ssl_target_name_override", "127.0.0.1")
    address = f"{there.values['host']}:{there.values['grpc_port']}"
    with grpc.secure_channel(address, trusted, options=[name]) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        token = ("authorization", f"Bearer {there.connection.token}")
        assert check(b"", metadata=[token], timeout=there.limit_s) == b"\x08\x01"


def auth(there: There) -> None:
    statuses = [there.ask("GET", "/Info", token=token)[0] for token in (False, True)]
    assert statuses == [401, 200]


def allow_origin(there: There) -> None:
    origins = [*there.values["allow_origin"], "https://other.example"]
    answers = [there.ask("GET", "/Info", headers={"Origin": origin})[0] for origin in origins]
    assert answers == [200, 200, 403]


def insecure(there: There) -> None:
    """MIP, which has no token, is served although all clients must send one."""
    with _mip_client(there) as client:
        client.sendall(PING)
        with client.makefile("rb") as answer:
            assert answer.read(len(PONG)) == PONG


def max_body_bytes(there: There) -> None:
    largest = there.values["max_body_bytes"]
    statuses = [there.ask("POST", "/Evaluate", b" " * n)[0] for n in (largest, largest + 1)]
    assert statuses == [400, 413]


def max_held_bytes(there: There) -> None:
    """A body without a length may be half as large."""
    half = there.values["max_held_bytes"] // 2
    statuses = [there.ask("POST", "/Evaluate", [b" " * n])[0] for n in (half, half + 1)]
    assert statuses == [400, 413]


def non_finite(there: There) -> None:
    assert there.evaluate("plate", float("nan")) == (200, {"output": [[None]]})


def graphpipe_default(there: There) -> None:
    """The description of the model at the root is that of this one."""
    _, there_is = there.ask("POST", "/", METADATA_REQUEST)
    assert (b"plate" in there_is, b"beam" in there_is) == (True, False)


def kserve_dialect(there: There) -> None:
    assert json.loads(there.ask("GET", "/v2")[1])["name"] == "triton"


def mip(there: There) -> None:
    """Each model answers at its address."""
    addresses = {model: address for address, model in there.connection.addresses["mip"].items()}
    assert addresses["plate"] == f"unix://{there.folder / 'plate.sock'}"
    for model in ("beam", "plate"):
        ((answer,),) = kubemo.Client().inference(addresses[model], ((kubemo.Text("2.5"),),))
        assert answer.decode() == [2.5]


def mip_max_bytes(there: There) -> None:
    """A packet of this size is read, and a larger one is refused."""
    largest = there.values["mip_max_bytes"]
    for size, refused in ((largest, False), (largest + 1, True)):
        with _mip_client(there) as client:
            client.sendall(HEAD.pack(VERSION, PacketKind.INFERENCE, REQUEST, 0, size))
            client.sendall(b"" if refused else bytes(size))
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as answer:
                assert (b"the limit here is %d" % largest in answer.read()) is refused


def _mip_client(there: There) -> socket.socket:
    where = [address for address in there.connection.addresses["mip"] if "tcp" in address]
    host, _, port = where[0].removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=there.limit_s)


def aepsych(there: There) -> None:
    """An experiment can be set up there."""
    host, _, port = there.connection.addresses["aepsych"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=there.limit_s) as client:
        client.sendall(request("setup", SETUP))
        assert b"strat_id" in client.recv(1 << 16)


def journal(there: There) -> None:
    """The experiment that was set up is in this file."""
    aepsych(there)
    assert list(read_journal(there.folder / "kept.db"))
    assert not (there.run / "experiments.db").exists()
