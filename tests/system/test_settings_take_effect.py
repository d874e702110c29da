"""Every setting has its effect in a running farm, in each way in which it may be set."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farm.descriptors import every
from farm.settings import SETTINGS
from tests.support import effects_on_calls, effects_on_workers
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import LIMIT_S
from tests.support.setting_scenes import FILES, MODELS, SCENES, SLOW_SCENES, Scene
from tests.support.setting_ways import WAYS, options_of, start_command, started
from tests.support.span_collector import SpanCollector, in_environment, span_collector

SOON_S = 8.0
"""Limit for an effect that does not come."""

BESIDE = {
    "mpi": ["mpi_launch"],
    "record": ["reuse"],
    "mip": ["mip_max_bytes"],
    "aepsych": ["journal"],
    "grpc_port": ["grpc_tls_cert", "grpc_tls_key"],
    "grpc_tls_cert": ["grpc_tls_key"],
    "grpc_tls_key": ["grpc_tls_cert"],
    "dask": ["dask_resources", "dask_slots"],
}
"""Settings that cannot be set without another one."""

REFUSED = {"insecure": "expected no address without a token, as auth is 'always'"}
"""Settings without which the farms of their scenes do not start, and why."""

ALL = SCENES | SLOW_SCENES


@pytest.fixture(scope="module")
def spans() -> Iterator[SpanCollector]:
    """The collector that the environment names."""
    with span_collector() as running, in_environment(running):
        yield running


def failures(
    scene: Scene, way: str, folder: Path, spans: SpanCollector, *, without: Sequence[str] = ()
) -> list[str]:
    """Run a farm with the settings of a scene; return a text for each that has no effect.

    without: settings that are left out; then only the first of them is checked.
    """
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    wanted = scene.values(folder)
    values = {name: value for name, value in wanted.items() if name not in without}
    checks = {without[0]: scene.checks[without[0]]} if without else scene.checks
    found = []
    with scene.around(folder), started(way, values, folder, scene.models) as there:
        there.spans, there.values = spans, wanted
        if without:
            wait_until(lambda: values.get("workers") == 0 or there.client.status()["workers"])
            there.limit_s = SOON_S
        for name, check in checks.items():
            try:
                check(there)
            except Exception:
                found.append(f"{name} has no effect: {traceback.format_exc()}")
    return found


def test_every_setting_has_an_effect_to_see() -> None:
    theirs = [option.name for protocol in every() for option in protocol.options]
    seen = [name for scene in ALL.values() for name in scene.checks]
    assert sorted(seen) == sorted([*SETTINGS, *theirs])


@pytest.mark.parametrize(
    "way", ["python", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[:3])]
)
def test_settings_take_effect(
    way: str, tmp_path: Path, spans: SpanCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def failed(name: str) -> list[str]:
        folder = tmp_path if way == "python" else tmp_path / name
        return failures(SCENES[name], way, folder, spans)

    with ThreadPoolExecutor() as pool:  # each farm waits most of the time
        found = [text for texts in pool.map(failed, SCENES) for text in texts]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, scene in SLOW_SCENES.items() for way in scene.ways]
)
def test_settings_with_more_processes_take_effect(
    name: str, way: str, tmp_path: Path, spans: SpanCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failures(SLOW_SCENES[name], way, tmp_path, spans) == []


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["option", "variable"])
def test_settings_of_farm_worker_take_effect(log_format: str, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    values = {"workers": 2, "fork": False, "time_limit_s": 0.5, "dir": "farm-run"}
    words = ["worker", "models.py:Plate", *options_of({k: values[k] for k in values if k != "dir"})]
    words += ["--log-format", "json"] if log_format == "option" else []
    variables = {} if log_format == "option" else {"FARM_LOG_FORMAT": "json"}
    farm = {"workers": 0, "port": 0, "dir": "farm-run"}
    with started("option", farm, tmp_path, models=[]) as there:
        worker = start_command(words, tmp_path, variables, tmp_path / "worker")
        try:
            there.values, there.pid, there.errors = values, worker.pid, None
            effects_on_workers.fork(there)
            effects_on_workers.log_format(there)
            effects_on_calls.time_limit_s(there)
        finally:
            worker.terminate()
            worker.wait(LIMIT_S)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("scene", "name"), [(scene, name) for scene in ALL for name in ALL[scene].checks]
)
def test_without_the_setting_its_effect_is_not_there(
    scene: str, name: str, tmp_path: Path, spans: SpanCollector
) -> None:
    without = [name, *BESIDE.get(name, [])]
    if name in REFUSED:
        with pytest.raises(AssertionError, match=REFUSED[name]):
            failures(ALL[scene], "option", tmp_path, spans, without=without)
    else:
        assert failures(ALL[scene], "option", tmp_path, spans, without=without)
