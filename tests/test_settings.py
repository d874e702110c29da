"""Settings: their limits, and the contents of a settings file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from farm.descriptors import Option
from farm.policies import ModelPolicy
from farm.settings import Settings, SettingsError, option_values, read_settings, settings_of


@pytest.mark.parametrize("name", ["dir", "record", "unix"])
def test_a_path_may_be_a_text(name: str) -> None:
    assert getattr(settings_of({name: "some/place"}), name) == Path("some/place")


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
        ("heartbeat_s", 0.0),
        ("grace_s", -1.0),
        ("time_limit_s", 0.0),
        ("non_finite", "nan"),
        ("mpi", 0),
        ("mpi_launch", "mpiexec"),
        ("grpc_port", 65536),
        ("reserve", ("beam=-1",)),
        ("model_priority", ("beam=high",)),
        ("dask_resources", ("GPU=1",)),
        ("grpc_tls_cert", Path("cert.pem")),
        ("grpc_tls_key", Path("key.pem")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"{name} (is|has) .*expected"):
        Settings(**{name: value})


OPTIONS = [
    Option("places", repeatable=True),
    Option("most", kind=int, default=7),
    Option("book", kind=Path),
]


def test_options_of_protocols_are_settings_too(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text('port = 0\nplaces = ["a", "b"]\nbook = "c.db"\n')
    settings = settings_of(read_settings(file, OPTIONS), OPTIONS)
    assert (settings.port, settings.options["places"]) == (0, ("a", "b"))
    assert option_values(settings, OPTIONS) == {
        "places": ("a", "b"),
        "most": 7,
        "book": Path("c.db"),
    }
    with pytest.raises(
        SettingsError, match=r"'pages' is not a setting; expected one of: .*book.*places"
    ):
        settings_of({"pages": 1}, OPTIONS)
    with pytest.raises(SettingsError, match="a protocol has the option 'port', a setting of farm"):
        settings_of({}, [Option("port", kind=int)])


def test_paths_may_be_text() -> None:
    assert settings_of({"record": "a.record", "port": 0}) == Settings(
        record=Path("a.record"), port=0
    )
    assert settings_of({"record": None}).record is None


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text('port = 0\ndir = "runs/a"\ngrace_s = 3\ntime_limit_s = 1.5\n')
    settings = Settings(**read_settings(file))
    assert settings == Settings(port=0, dir=Path("runs/a"), grace_s=3, time_limit_s=1.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "'prot', which is not a setting"),
        ('port = "one"', "port to 'one'; expected int"),
        ("workers = true", "workers to True; expected int"),
        ("insecure = 1", "insecure to 1; expected bool"),
        ('places = "127.0.0.1:9000"', "places to '127.0.0.1:9000'; expected tuple"),
        ("places = [9000]", r"places to \[9000\]; expected a list of texts"),
        ("most = true", "most to True; expected int"),
        ("book = 1", "book to 1; expected Path"),
        ("port = ", "cannot be read"),
        ("model = 1", r"model to 1; expected tables such as \[model.beam\]"),
        ("[model]\nreserve = 1", r"sets reserve of \[model\]; expected tables \[model.NAME\]"),
        (
            "[model.beam]\nprio = 1",
            "'prio' of model 'beam', which is not a setting of models; expected one of: "
            "priority, reserve",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        read_settings(file, OPTIONS)


def test_tables_of_models_are_their_reserves_and_priorities(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text(
        'reserve = ["c=2"]\n[model.beam]\nreserve = 1\npriority = -5\n'
        '[model."a.b"]\nreserve = "25%"\n'
    )
    settings = Settings(**read_settings(file))
    assert settings.reserve == ("c=2", "beam=1", "a.b=25%")
    assert settings.policies() == {
        "c": ModelPolicy(reserve=2),
        "beam": ModelPolicy(reserve=1, priority=-5),
        "a.b": ModelPolicy(reserve_percent=25.0),
    }
    file.write_text("[model.beam]\nreserve = true\n")
    with pytest.raises(SettingsError, match="reserve has 'beam=True'; expected"):
        Settings(**read_settings(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no settings file"):
        read_settings(tmp_path / "farm.toml")


def test_every_setting_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    for field in fields(Settings):
        if field.name == "options":
            continue  # each of them has its own name
        kind = str(field.type).removesuffix(" | None")
        value = {
            "str": '"x"',
            "Path": '"x"',
            "NonFinite": '"null"',
            "LogFormat": '"json"',
            "Auth": '"remote"',
            "Transport": '"zmq"',
            "int": "1",
            "float": "1.0",
            "bool": "true",
            "tuple[str, ...]": '["x=1"]',
        }[kind]
        file.write_text(f"{field.name} = {value}\n")
        assert set(read_settings(file)) == {field.name}


def test_the_resources_of_a_call_at_a_dask_cluster() -> None:
    settings = Settings(dask="tcp://x:1", dask_resources=("GPU=1", "MEM=2.5"))
    assert settings.dask_needs() == {"GPU": 1.0, "MEM": 2.5}
    for word in ("GPU", "=1", "GPU=0", "GPU=-1", "GPU=inf", "GPU=nan"):
        with pytest.raises(SettingsError, match=f"dask_resources has '{word}'"):
            Settings(dask="tcp://x:1", dask_resources=(word,))
