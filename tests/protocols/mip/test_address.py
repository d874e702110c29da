"""Values of the option `--mip`."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.protocols.mip.address import (
    MipAddress,
    MipOptions,
    check_models,
    only,
    read_address,
    read_options,
)
from farm.settings import Settings, SettingsError


@pytest.mark.parametrize(
    ("text", "model", "shown"),
    [
        ("beam=127.0.0.1:9000", "beam", "tcp://127.0.0.1:9000"),
        ("localhost:0", "", "tcp://localhost:0"),
        ("beam=tcp://127.0.0.1:9000", "beam", "tcp://127.0.0.1:9000"),
        ("beam=[::1]:9000", "beam", "tcp://[::1]:9000"),
        ("beam=unix:/run/beam.sock", "beam", "unix:///run/beam.sock"),
        ("unix:/run/a=b.sock", "", "unix:///run/a=b.sock"),
        ("beam=unix:///run/beam.sock", "beam", "unix:///run/beam.sock"),
    ],
)
def test_addresses(text: str, model: str, shown: str) -> None:
    address = read_address(text, insecure=False)
    assert (address.model, str(address)) == (model, shown)


def test_a_path_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_address("unix:s", insecure=False).path == str(tmp_path / "s")


def test_options() -> None:
    values = {"mip": ("beam=127.0.0.1:9000",), "mip_max_bytes": 100}
    expected = MipOptions((MipAddress("beam", "127.0.0.1", 9000),), 100)
    assert read_options(values, Settings()) == expected
    with pytest.raises(SettingsError, match="mip_max_bytes is 0; expected 1 or more"):
        read_options(values | {"mip_max_bytes": 0}, Settings())
    with pytest.raises(SettingsError, match="mip_max_bytes is 100; expected mip, an address"):
        read_options({**values, "mip": ()}, Settings())
    with pytest.raises(SettingsError, match="auth is 'always'"):
        read_options(values, Settings(auth="always"))


@pytest.mark.parametrize(
    "text", ["", "beam=", "beam=9000", "beam=127.0.0.1:", "beam=h:70000", ":9000", "beam=unix:"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(SettingsError, match="expected"):
        read_address(text, insecure=True)


def test_beyond_this_machine_only_if_wanted() -> None:
    for host in ("0.0.0.0", "[::]", "node1", "10.0.0.1"):
        with pytest.raises(SettingsError, match="add insecure=True"):
            read_address(f"beam={host}:9000", insecure=False)
        assert read_address(f"beam={host}:9000", insecure=True).port == 9000


def test_which_model() -> None:
    nameless, beam = MipAddress("", "h", 1), MipAddress("beam", "h", 1)
    check_models([nameless], ["plate"])
    check_models([beam], ["plate", "beam"])
    with pytest.raises(SettingsError, match="say which, NAME=tcp://h:1, of a, b"):
        check_models([nameless], ["a", "b"])
    with pytest.raises(SettingsError, match="'beam', which is not served; the models are plate"):
        check_models([beam], ["plate"])
    assert [only(models) for models in ([], ["plate"], ["a", "b"])] == ["", "plate", ""]
