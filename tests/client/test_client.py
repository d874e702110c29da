"""`connect` finds its target or reports why not; what a client can report of its farm."""

from __future__ import annotations

import math
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from farm.call import Call, Hints, Operation
from farm.cli import run
from farm.client import Client, RemoteModel, connect
from farm.client.client import Patience
from farm.client.http_line import HttpLine
from farm.client.native_line import NativeLine
from farm.errors import Cancelled, InvalidInput, ModelNotFound, Unavailable
from farm.transports.connection import Connection, read_connection, write_connection
from farm.transports.keys import new_keys
from tests.support.coroutines import LIMIT_S
from tests.support.dispatcher_farm import Served
from tests.support.running_farm import Farm

MODELS = ["affine", "beam", "long", "misfit", "moody", "once", "plane", "two"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Provide a folder without a farm, and an environment that names none."""
    monkeypatch.chdir(tmp_path)
    for name in ("FARM_CONNECTION", "FARM_URL"):
        monkeypatch.delenv(name, raising=False)


def test_a_folder_or_its_file_is_the_native_wire_and_a_url_is_http(served: Served) -> None:
    file, url = served.folder / "farm.json", served.connection.url
    natively: list[str | Path] = [served.folder, str(served.folder), file, str(file)]
    for target in (*natively, url, url + "/"):
        with connect(target) as client:
            assert isinstance(client.line, NativeLine if target in natively else HttpLine)
            assert client.models() == MODELS
            assert getattr(client.line, "is_farm", True)


def test_without_a_target_the_environment_names_a_farm_or_the_folder_here_is_taken(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "farm-run").symlink_to(served.folder)
    with connect() as client:
        assert client.models() == MODELS
    monkeypatch.setenv("FARM_URL", served.connection.url)
    with connect() as client:
        assert isinstance(client.line, HttpLine)
    monkeypatch.setenv("FARM_CONNECTION", str(served.folder))
    with connect() as client:
        assert isinstance(client.line, NativeLine)


@pytest.mark.root
def test_the_folder_here_of_another_user_is_taken_if_it_is_named(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "farm-run").mkdir()
    for name in ("farm.json", "workers.json"):
        write_connection(tmp_path / "farm-run" / name, read_connection(served.folder))
        os.chown(tmp_path / "farm-run" / name, 65534, 65534)
    monkeypatch.chdir(tmp_path)
    for words in (["call", "1"], ["url"], ["status"], ["stop"], ["worker", "beam.py"]):
        assert run(words) != 0
        assert "belongs to user nobody" in capsys.readouterr().err
    with pytest.raises(Unavailable, match="belongs to user nobody"):
        connect(wait=60)
    with connect("farm-run") as client:
        assert client.models() == MODELS
    assert run(["url", "--to", "farm-run"]) == 0


def test_a_farm_that_has_ended_is_said_soon(tmp_path: Path) -> None:
    file = tmp_path / "farm.json"
    keys = new_keys()
    ended = Connection(
        "tcp://127.0.0.1:1",
        server_key=keys.server.public,
        client_public=keys.clients.public,
        client_secret=keys.clients.secret,
        host=socket.gethostname(),
        pid=2**22 + 1,
    )
    write_connection(file, ended)
    with pytest.raises(Unavailable, match=r"\(process 4194305 on this host\) has ended"):
        connect(file)


def test_a_process_number_of_elsewhere_misleads_nobody(tmp_path: Path) -> None:
    """In a container, the farm's process has another id."""
    with closing(Farm(tmp_path)) as farm:
        told = replace(farm._files[0], host=socket.gethostname(), pid=2**22 + 1)
        write_connection(farm.connect, told)
        with connect(farm.connect) as client:
            assert client.models() == []
            with pytest.raises(Unavailable, match="the farm waits for its first worker"):
                client.expect_models()


@pytest.mark.parametrize("wait", [0.0, -1.0, float("nan")])
def test_a_patience_that_is_no_time_is_refused(served: Served, wait: float) -> None:
    with pytest.raises(ValueError, match="expected a number of seconds above 0"):
        connect(served.folder, wait=wait)


def test_patience_may_have_no_end(served: Served) -> None:
    for target in (served.folder, served.connection.url):
        with connect(target, wait=math.inf) as client:
            assert client.model("moody")(2.0)[0] == 2.0
            assert client.status()["models"] == MODELS


def test_the_first_contact_waits_for_a_farm(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(connect, tmp_path / "farm.json", wait=LIMIT_S)
        with closing(Farm(tmp_path)), found.result(LIMIT_S) as client:
            assert client.models() == []


@pytest.mark.parametrize("wait", [None, 0.1])
def test_a_farm_that_does_not_come_is_reported(tmp_path: Path, wait: float | None) -> None:
    for target in (tmp_path / "none", tmp_path / "farm.json"):
        with pytest.raises(Unavailable, match=r"no connection file .*; is the farm running"):
            connect(target, wait=wait)
    with pytest.raises(Unavailable, match=r"no farm specified: pass a URL, a connection file"):
        connect(wait=wait)


def test_a_file_that_others_can_read_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "farm.json"
    write_connection(file, Connection("", local="farm.sock", host=socket.gethostname()))
    file.chmod(0o644)
    with pytest.raises(Unavailable, match="others can read"):
        connect(tmp_path, wait=math.inf)


def test_a_model_that_is_not_there_is_awaited_only_where_it_may_come(served: Served) -> None:
    with connect(served.folder, wait=math.inf) as client:
        with pytest.raises(ModelNotFound, match="'nope' is not served here"):
            client.model("nope")
        with pytest.raises(ModelNotFound, match="specify a model"):
            client.model()


def test_a_model_is_awaited_whose_workers_have_yet_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def no_patience(seconds: float) -> Patience:
        waited.append(seconds)
        return Patience(0.0)

    with closing(Farm(tmp_path)) as farm:
        farm.expect("surrogate")
        farm.expect_later("beam", "kind 'gpu': 1 job is pending", asked=3)
        with connect(farm.connect, wait=LIMIT_S) as client, monkeypatch.context() as context:
            context.setattr("farm.client.client.Patience", no_patience)
            problem = "'beam' is not served here; the models are: surrogate; but kind 'gpu'"
            with pytest.raises(Unavailable, match=problem):
                client.model("beam")
        assert waited == [LIMIT_S]
        with connect(farm.connect, wait=math.inf) as client:
            assert client.model("beam").name == "beam"


def test_a_model_may_come_while_the_client_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Farm(tmp_path)) as farm:
        farm.expect("surrogate")
        with connect(farm.connect, wait=math.inf) as client:
            names = client.line.names

            def outdated() -> list[str]:
                found = names()
                farm.expect("beam")
                return found

            monkeypatch.setattr(client.line, "names", outdated)
            assert client.model("beam").name == "beam"


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("http://", "not the address of a server"),
        ("http:///x", "not the address of a server"),
        ("localhost:4242", "a URL begins with http:// or https://, such as http://localhost:4242"),
        ("ftp://farm", "a URL begins with http:// or https://, not ftp://"),
    ],
)
def test_what_is_no_address_is_said(target: str, remedy: str) -> None:
    with pytest.raises(Unavailable, match=remedy):
        connect(target)


def test_calls_of_ones_own_making_are_submitted(client: Client) -> None:
    call = Call("two", Operation.EVALUATE, (np.array([1.0, 2.0]), np.array([3])))
    result = client.submit(call).result(LIMIT_S)
    assert [y.tolist() for y in result.outputs] == [[9.0], [1.0, 2.0]]
    assert "/" in result.worker
    assert client.submit(call, Hints("me", 1, 30.0)).result(LIMIT_S).run_time_s >= 0.0


def test_a_farm_describes_its_models(client: Client) -> None:
    info = client.describe("two", {"n": 5})
    assert [(t.name, t.shape, t.dtype) for t in info.inputs] == [
        ("a", (5,), "float64"),
        ("k", (1,), "int64"),
    ]
    assert info.description == "Two inputs, two outputs; sizes by config." or not info.description
    with pytest.raises(ModelNotFound, match="'no such' is not served"):
        client.describe("no such")


def test_a_farm_says_how_it_is(client: Client) -> None:
    status = client.status()
    assert status["models"] == MODELS
    assert {row["pid"] for row in status["workers"]}.isdisjoint({0, os.getpid()})


def test_a_closed_client_says_so(client: Client) -> None:
    moody = client.model("moody")
    moody(1.0)
    future = moody.submit(101.0)
    client.close()
    assert isinstance(future.exception(LIMIT_S), Cancelled)
    with pytest.raises(Unavailable, match="is closed"):
        moody(1.0)
    client.close()


def shown_in_notebook(value: Client | RemoteModel) -> str:
    """Return what Jupyter calls for."""
    return value._repr_html_()


def test_a_client_shows_its_farm_and_what_it_does(client: Client, target: str | Path) -> None:
    assert repr(client) == f"<Client of {target}: {', '.join(MODELS)}>"
    client.model("plane")([0.0, 0.0])
    shown = shown_in_notebook(client)
    assert "workers: 2" in shown
    assert "<td>plane</td><td>evaluate</td>" in shown


def test_a_client_does_not_show_its_token_and_another_server_shows_its_address(
    served: Served, official: str
) -> None:
    with connect(official) as client:
        assert shown_in_notebook(client).startswith("<code>&lt;Client of http://")
    url = str(served.connection.url)
    with connect(url.replace("//", "//user:secret@")) as client:
        assert repr(client).startswith(f"<Client of {url}: ")
        assert "secret" not in shown_in_notebook(client) + repr(client)


def test_a_model_shows_its_inputs_and_outputs(client: Client) -> None:
    shown = shown_in_notebook(client.model("beam"))
    info = client.describe("beam")
    for side, tensors in (("input", info.inputs), ("output", info.outputs)):
        for tensor in tensors:
            row = f"<td>{side}</td><td>{tensor.name}</td><td>{tensor.shape}</td>"
            assert row in shown
    assert "evaluate" in shown


def test_something_else_than_a_call_does_not_end_the_client(client: Client) -> None:
    with pytest.raises(InvalidInput, match=r"the call is a str; expected a farm\.Call"):
        client.submit("beam")  # type: ignore[arg-type]  # this is the mistake
    assert client.models()


def test_patience_looks_again_while_there_is_time() -> None:
    looks = []

    def find() -> str:
        looks.append(1)
        if len(looks) < 3:
            raise Unavailable("not yet")
        return "here"

    assert Patience(60.0).with_(find) == "here"
    assert len(looks) == 3


@pytest.mark.parametrize(("seconds", "helps"), [(0.0, True), (60.0, False)])
def test_patience_ends_without_time_or_hope(seconds: float, helps: bool) -> None:
    def find() -> str:
        raise Unavailable("gone")

    with pytest.raises(Unavailable, match="gone"):
        Patience(seconds).with_(find, lambda _: helps)
