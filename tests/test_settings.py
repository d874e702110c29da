"""Settings: their limits, and what a settings file may say."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from farm.settings import Settings, SettingsError, read_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("workers", -1),
        ("retries", -1),
        ("max_queued", 0),
        ("max_body_bytes", 0),
        ("max_held_bytes", 0),
        ("mip_max_bytes", 0),
        ("heartbeat_s", 0.0),
        ("grace_s", -1.0),
        ("time_limit_s", 0.0),
        ("non_finite", "nan"),
        ("mpi", 0),
        ("mpi_launch", "mpiexec"),
        ("grpc_port", 65536),
        ("grpc_tls_cert", Path("cert.pem")),
        ("grpc_tls_key", Path("key.pem")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"{name} is .*expected"):
        Settings(**{name: value})


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text('port = 0\ndir = "runs/a"\ngrace_s = 3\ntime_limit_s = 1.5\n')
    settings = Settings(**read_settings(file))
    assert settings == Settings(port=0, dir=Path("runs/a"), grace_s=3, time_limit_s=1.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "'prot', which is no setting"),
        ('port = "one"', "port to 'one'; expected int"),
        ("workers = true", "workers to True; expected int"),
        ("insecure = 1", "insecure to 1; expected bool"),
        ('mip = "127.0.0.1:9000"', "mip to '127.0.0.1:9000'; expected tuple"),
        ("mip = [9000]", r"mip to \[9000\]; expected a list of texts"),
        ("port = ", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        read_settings(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no settings file"):
        read_settings(tmp_path / "farm.toml")


def test_every_setting_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    for field in fields(Settings):
        kind = str(field.type).removesuffix(" | None")
        value = {
            "str": '"x"',
            "Path": '"x"',
            "NonFinite": '"null"',
            "Auth": '"remote"',
            "Transport": '"zmq"',
            "int": "1",
            "float": "1.0",
            "bool": "true",
            "tuple[str, ...]": '["x"]',
        }[kind]
        file.write_text(f"{field.name} = {value}\n")
        assert set(read_settings(file)) == {field.name}
