"""Keys that outlive a server, and their access rights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from farm.transports.connection import Connection, read_connection, write_connection
from farm.transports.keys import (
    FILE,
    KeyPair,
    Keys,
    Predecessor,
    forget_secret,
    keep_secret,
    new_keys,
    predecessor,
)


def reached(port: int, keys: Keys, pair: KeyPair) -> Connection:
    return Connection(
        f"tcp://login:{port}",
        server_key=keys.server.public,
        client_public=pair.public,
        client_secret=pair.secret,
        token="t" if pair == keys.clients else "",
    )


def left(folder: Path) -> Keys:
    """Leave the state of a farm that had no time to stop."""
    keys = new_keys()
    write_connection(folder / "farm.json", reached(1234, keys, keys.clients))
    write_connection(folder / "workers.json", reached(5678, keys, keys.workers))
    keep_secret(folder, keys)
    return keys


def test_the_next_front_door_has_the_keys_and_ports_of_the_one_before(tmp_path: Path) -> None:
    keys = left(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert predecessor(tmp_path) == Predecessor(keys, "1234", "5678", "t")
    for file in ("farm.json", "workers.json"):
        assert keys.server.secret not in (tmp_path / file).read_text()


def test_keys_that_do_not_fit_are_not_taken(tmp_path: Path) -> None:
    assert predecessor(tmp_path) is None
    keys = left(tmp_path)
    keep_secret(tmp_path, new_keys())
    assert predecessor(tmp_path) is None
    (tmp_path / FILE).write_text("nonsense")
    assert predecessor(tmp_path) is None
    keep_secret(tmp_path, keys)
    assert predecessor(tmp_path) is not None
    (tmp_path / FILE).chmod(0o644)
    assert predecessor(tmp_path) is None
    keep_secret(tmp_path, keys)
    for file in ("farm.json", "workers.json"):
        whole = read_connection(tmp_path / file)
        write_connection(tmp_path / file, replace(whole, server_key=new_keys().server.public))
        assert predecessor(tmp_path) is None
        (tmp_path / file).unlink()
        assert predecessor(tmp_path) is None
        write_connection(tmp_path / file, whole)
        assert predecessor(tmp_path) is not None


def test_after_an_orderly_end_nobody_takes_its_place(tmp_path: Path) -> None:
    left(tmp_path)
    forget_secret(tmp_path)
    forget_secret(tmp_path)
    assert predecessor(tmp_path) is None


def test_keys_are_fresh_and_their_secrets_stay_out_of_logs() -> None:
    keys = new_keys()
    pairs = [keys.server, keys.clients, keys.workers]
    assert len({pair.public for pair in [*pairs, new_keys().server]}) == 4
    assert not any(pair.secret in repr(keys) for pair in pairs)
