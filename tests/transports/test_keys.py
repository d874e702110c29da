"""Keys that outlive a front door, and whom they are not given to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from farm.transports.connection import Connection, new_keys, read_connection, write_connection
from farm.transports.keys import FILE, forget_secret, keep_secret, with_secret


def connection() -> Connection:
    return Connection("tcp://login:1234", token="t", **new_keys())  # type: ignore[arg-type]  # texts


def test_the_next_front_door_has_the_keys_of_the_one_before(tmp_path: Path) -> None:
    first = connection()
    write_connection(tmp_path / "farm.json", first)
    keep_secret(tmp_path, first)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    before = read_connection(tmp_path)
    assert before.server_secret == ""
    assert with_secret(tmp_path, before) == first


def test_keys_that_do_not_fit_are_not_taken(tmp_path: Path) -> None:
    first = connection()
    assert with_secret(tmp_path, first) is None
    keep_secret(tmp_path, connection())
    assert with_secret(tmp_path, first) is None
    (tmp_path / FILE).write_text("nonsense")
    assert with_secret(tmp_path, first) is None
    keep_secret(tmp_path, first)
    assert with_secret(tmp_path, replace(first, server_key="")) is None
    assert with_secret(tmp_path, first) is not None
    (tmp_path / FILE).chmod(0o644)
    assert with_secret(tmp_path, first) is None


def test_after_an_orderly_end_nobody_takes_its_place(tmp_path: Path) -> None:
    first = connection()
    keep_secret(tmp_path, first)
    forget_secret(tmp_path)
    forget_secret(tmp_path)
    assert with_secret(tmp_path, first) is None
