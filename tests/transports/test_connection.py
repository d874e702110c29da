"""The connection file: its contents, its access rights, and messages when it is unusable."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

import farm
from farm.errors import Unavailable
from farm.transports.connection import (
    Connection,
    _check_key,
    new_token,
    read_connection,
    read_worker_connection,
    workers_file,
    write_connection,
)

PUBLIC, SECRET = zmq.curve_keypair()

WHOLE = Connection(
    "tcp://node1:5555",
    server_key=zmq.curve_keypair()[0].decode(),
    client_public=PUBLIC.decode(),
    client_secret=SECRET.decode(),
    url="http://node1:4242",
    addresses={"mip": {"tcp://127.0.0.1:9000": "beam"}, "aepsych": "127.0.0.1:5555"},
    token="t",
    host="node1",
    pid=7,
)


def written(path: Path, **changes: Any) -> Path:
    """Write a connection file with some values replaced."""
    write_connection(path, WHOLE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "farm.json"
    write_connection(path, WHOLE)
    assert read_connection(path) == read_connection(tmp_path) == WHOLE


def test_workers_find_their_own_file_by_the_folder_or_either_file(tmp_path: Path) -> None:
    write_connection(tmp_path / "farm.json", WHOLE)
    with pytest.raises(Unavailable, match=r"no connection file .*/workers\.json"):
        read_worker_connection(tmp_path)
    theirs = Connection("tcp://node1:6666", client_secret=zmq.curve_keypair()[1].decode())
    write_connection(tmp_path / "workers.json", theirs)
    for path in (tmp_path, tmp_path / "farm.json", tmp_path / "workers.json"):
        assert read_worker_connection(path) == theirs
    assert workers_file(Path("copied.json")) == Path("copied.json")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_may_read_it_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "farm.json"
    path.write_text("left by another farm")
    path.chmod(0o644)
    before = os.umask(umask)
    try:
        write_connection(path, WHOLE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["farm.json"]


def test_leftover_of_a_killed_writer_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "farm.json"
    (tmp_path / f".farm.json.{'0' * 16}.new").write_text("half of a fi")
    write_connection(path, WHOLE)
    assert read_connection(path).endpoint == WHOLE.endpoint


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "farm.json"
    folder.mkdir()
    (folder / "x").touch()
    with pytest.raises(OSError, match=r"farm\.json"):
        write_connection(folder, WHOLE)
    assert [p.name for p in tmp_path.iterdir()] == ["farm.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_refused_when_others_can_get_at_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "farm.json"
    write_connection(path, WHOLE)
    path.chmod(mode)
    with pytest.raises(Unavailable, match=rf"others can read .*mode {mode:o}.*chmod 600"):
        read_connection(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no connection file .*farm\.json; is the farm running"):
        read_connection(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": 2}, "version 2, this farm reads 1"),
        ({"version": None}, "version None"),
        ({"endpoint": 5}, "endpoint is 5, expected str"),
        ({"endpoint": "node1"}, "expected tcp://HOST:PORT"),
        ({"pid": "7"}, "pid is '7', expected int"),
        ({"token": None}, "token is None"),
        ({"client_secret": ["x"]}, "client_secret is"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Unavailable, match=complaint):
        read_connection(written(tmp_path / "farm.json", **changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', "\udcff\x00"])
def test_malformed_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "farm.json"
    path.touch(0o600)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Unavailable, match="cannot be used"):
        read_connection(path)


def test_what_later_releases_add_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "farm.json", colour="green")
    assert read_connection(path).endpoint == WHOLE.endpoint


def test_tokens_are_fresh_and_secrets_stay_out_of_logs() -> None:
    assert new_token() != new_token()
    assert len(new_token()) >= 32
    assert WHOLE.client_secret not in repr(WHOLE) + str([WHOLE])


@pytest.mark.parametrize("name", ["server_key", "client_public", "client_secret"])
@pytest.mark.parametrize("key", ["short", "é" * 40, "#" * 40, "0" * 45])
def test_damaged_keys_are_refused_with_the_file_and_without_the_key(
    tmp_path: Path, name: str, key: str
) -> None:
    path = written(tmp_path / "farm.json", **{name: key})
    with pytest.raises(Unavailable) as refused:
        read_connection(path)
    text = str(refused.value)
    assert str(path) in text
    assert f"{name} is not a key of ZeroMQ: expected 40 characters in Z85, got {len(key)}" in text
    assert "copy the file again" in text
    assert key not in text
    with pytest.raises(Unavailable, match="is not a key of ZeroMQ"):
        farm.connect(path)


def test_keys_that_zeromq_refuses_are_refused() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:

        @given(st.text("0aZ#%$-é", min_size=40, max_size=40))
        def both_agree(key: str) -> None:
            try:
                socket.curve_serverkey = key.encode()
            except zmq.ZMQError:
                with pytest.raises(ValueError, match="is not a key of ZeroMQ"):
                    _check_key("server_key", key)
            else:
                _check_key("server_key", key)

        both_agree()
