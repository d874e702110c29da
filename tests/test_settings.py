"""Settings: their limits, and the contents of a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from farm.cli.serve import serve
from farm.descriptors import Option, every
from farm.policies import ModelPolicy
from farm.settings import (
    SETTINGS,
    Settings,
    SettingsError,
    choices_of,
    option_values,
    read_settings,
    settings_of,
)
from tests.support.setting_ways import command_line, text_of


@pytest.mark.parametrize("name", ["dir", "record", "unix"])
def test_a_path_may_be_a_text(name: str) -> None:
    assert getattr(settings_of({name: "some/place"}), name) == Path("some/place")
    assert settings_of({"record": None}).record is None


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
        ("dask_slots", 3),
        ("grpc_tls_cert", Path("cert.pem")),
        ("grpc_tls_key", Path("key.pem")),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"{name} (is|has) .*expected"):
        Settings(**{name: value})


def test_what_its_workers_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"time_limit_s is 3.0; expected workers of farm's own"):
        Settings(dask="tcp://x:1", workers=0, time_limit_s=3.0)
    with pytest.raises(SettingsError, match="mpi is 2; expected workers on this machine"):
        Settings(workers=0, mpi=2)


def test_a_certificate_needs_the_port_of_grpc() -> None:
    pair = {"grpc_tls_cert": "cert.pem", "grpc_tls_key": "key.pem"}
    with pytest.raises(SettingsError, match="grpc_tls_cert is set; expected grpc_port beside it"):
        settings_of(pair)
    assert settings_of({**pair, "grpc_port": 0}).grpc_tls_key == Path("key.pem")


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


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "farm.toml"
    file.write_text('port = 0\ndir = "runs/a"\ngrace_s = 3\ntime_limit_s = 1.5\n')
    settings = Settings(**read_settings(file))
    assert settings == Settings(port=0, dir=Path("runs/a"), grace_s=3, time_limit_s=1.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "'prot', which is not a setting"),
        ('port = "one"', "port to 'one'; expected a whole number"),
        ("workers = true", "workers to True; expected a whole number"),
        ("insecure = 1", "insecure to 1; expected true or false"),
        ('places = "127.0.0.1:9000"', "places to '127.0.0.1:9000'; expected a list of texts"),
        ("places = [9000]", r"places to \[9000\]; expected a list of texts"),
        ("most = true", "most to True; expected a whole number"),
        ("book = 1", "book to 1; expected a path"),
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


def test_the_resources_of_a_call_at_a_dask_cluster() -> None:
    settings = Settings(dask="tcp://x:1", dask_resources=("GPU=1", "MEM=2.5"))
    assert settings.dask_needs() == {"GPU": 1.0, "MEM": 2.5}
    for word in ("GPU", "=1", "GPU=0", "GPU=-1", "GPU=inf", "GPU=nan"):
        with pytest.raises(SettingsError, match=f"dask_resources has '{word}'"):
            Settings(dask="tcp://x:1", dask_resources=(word,))


TEXTS = {
    "host": "127.0.0.2", "auth": "remote", "transport": "zmq", "non_finite": "null",
    "log_format": "json", "mpi_launch": "mpirun {ranks}", "reserve": "beam=1",
    "model_priority": "beam=2", "dask_resources": "GPU=1", "allow_origin": "https://a.example",
    "kserve_dialect": "triton", "mip": "beam=127.0.0.1:9000",
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "mpi_launch": {"mpi": 2}, "reuse": {"record": "r"}, "dask_resources": {"dask": "x"},
    "dask_slots": {"dask": "x"}, "grpc_tls_cert": {"grpc_tls_key": "x", "grpc_port": 0},
    "grpc_tls_key": {"grpc_tls_cert": "x", "grpc_port": 0},
}  # fmt: skip
THEIRS = [option for protocol in every() for option in protocol.options]


def _value(name: str) -> Any:
    """Return a value of a setting that is not its default."""
    kind = SETTINGS[name]["type"].removesuffix(" | None") if name in SETTINGS else ""
    option = next((o for o in THEIRS if o.name == name), None)
    if kind == "bool":
        return not SETTINGS[name]["default"]
    if kind in ("int", "float") or (option and option.kind is int):
        return 7
    text = TEXTS.get(name, "x")
    return [text] if kind.startswith("tuple") or (option and option.repeatable) else text


def _other(name: str, value: Any) -> Any:
    """Return another value of a setting, which is allowed beside the same settings."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if name in SETTINGS and (choices := choices_of(name)):
        return next(choice for choice in choices if choice != value)
    texts = {"reserve": "beam=3", "model_priority": "beam=4", "dask_resources": "GPU=5"}
    texts |= {"allow_origin": "https://b.example", "kserve_dialect": "open"}
    other = texts.get(name, "y")
    return [other] if isinstance(value, list) else other


def _handed(
    words: list[str], variables: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    monkeypatch.chdir(folder)
    seen: list[Settings] = []
    monkeypatch.setattr("farm.cli.front_door.run", lambda m, settings, p: seen.append(settings))
    result = CliRunner().invoke(serve, ["m.py", *words], env=variables, standalone_mode=False)
    assert result.exception is None, result.output
    return seen[0]


@pytest.mark.parametrize("name", [*SETTINGS, *(option.name for option in THEIRS)])
def test_every_setting_reaches_the_farm_in_every_way_and_the_nearest_one_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option overrides a variable, and that a key of the file."""
    ours, beside = _value(name), BESIDE.get(name, {})

    def check(settings: Settings, way: str) -> None:
        found = getattr(settings, name) if name in SETTINGS else settings.options[name]
        text = text_of(list(found) if isinstance(found, tuple) else found)
        assert text in (text_of(ours), f"{ours}.0"), way
        assert found != (SETTINGS[name]["default"] if name in SETTINGS else None), way

    check(settings_of({name: ours, **beside}, THEIRS), "python")
    weaker: list[str] = []
    for way in ("file", "variable", "option"):
        words, variables = list[str](), dict[str, str]()
        for other in (*weaker, way):
            value = ours if other == way else _other(name, ours)
            more, set_here = command_line(other, {name: value, **beside}, tmp_path)
            words += more
            variables |= set_here
        check(_handed(words, variables, tmp_path, monkeypatch), way)
        weaker.append(way)


@pytest.mark.parametrize(
    ("name", "value"), [("port", "1"), ("workers", True), ("fork", 1), ("reserve", "beam=1")]
)
def test_an_argument_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name} is {value!r}; expected"):
        settings_of({name: value})
