"""The farm of a sweep: a running one, or its own; reconnects after a restart."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import pytest

from farm.cli.sweep_farm import (
    Target,
    chosen_farm,
    is_unchanged,
    kept_target,
    open_farm,
    sources_of,
)
from farm.errors import ModelFailed, Unavailable
from farm.settings import Settings, settings_of
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.signature import signed
from farm.transports.connection import Connection, write_connection
from farm.worker.specs import version_of
from tests.support.dask_cluster import dask_cluster
from tests.support.dispatcher_farm import (
    BEAM,
    LIMIT_S,
    Served,
    farm_command,
    run_farm,
    run_here,
    serving,
)
from tests.support.running_farm import Farm
from tests.support.setting_ways import options_of
from tests.sweep.samples import BEAM as BEAM_INFO
from tests.sweep.samples import plan_of

TOTAL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def total(x):
    return total.comm.allreduce(x * (total.comm.rank + 1))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beam.py").write_text(BEAM)
    return tmp_path


def test_a_sweep_waits_for_the_first_worker_of_a_running_farm(folder: Path) -> None:
    with serving(folder, "--workers", "0") as served:
        words = ["--param", "E=1:2", "--fix", "load=1", "--design", "random:3", "-o", "s.h5"]
        with farm_command("sweep", "--to", str(served.folder), *words, cwd=folder) as process:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said == "waiting: no model is known yet: the farm waits for its first worker\n"
            with farm_command("worker", "beam.py", "--to", str(served.folder), cwd=folder):
                _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
    with h5py.File(folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * 3


@pytest.mark.parametrize(
    "target",
    [
        Target(),
        Target(to="http://x"),
        Target(("a.py", "b.py"), None, 4, 2.5),
        Target(("a.py",), dask="tcp://x:8786", dask_slots=9, dask_resources=("GPU=1",)),
        Target(("a.py",), mpi=4, mpi_launch="srun -n {ranks}"),
    ],
)
def test_a_target_reads_back_with_whole_paths(target: Target) -> None:
    models = tuple(str(Path(model).absolute()) for model in target.models)
    assert Target.from_json(target.to_json()) == replace(target, models=models)


def test_a_model_is_unchanged_if_its_file_has_the_version_of_the_sweep(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    target = Target(("beam.py",))
    facts = {"target": target.to_json()}
    plan = plan_of(info=replace(BEAM_INFO, version=version_of("beam.py")), provenance=facts)
    assert is_unchanged(target, plan)
    assert is_unchanged(Target((str(folder / "beam.py"),), workers=3), plan)
    assert not is_unchanged(Target(to="http://x"), plan)
    assert not is_unchanged(Target(("beam.py", "beam.py:Beam")), plan)
    (folder / "copy.py").write_text(BEAM)
    assert not is_unchanged(Target(("copy.py",)), plan)
    (folder / "beam.py").write_text(f"{BEAM}# changed")
    assert not is_unchanged(target, plan)
    assert not is_unchanged(target, plan_of(provenance=facts)), "it has no version"


def test_sources_are_files_but_not_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    plan = plan_of(provenance={"target": Target(("b.py:Beam", "http://x", "a.py")).to_json()})
    then, now = sources_of(Target(("other=beam.py",)), plan)
    assert then == f"{folder}/a.py, {folder}/b.py"
    assert now == f"{folder}/beam.py"
    assert sources_of(Target(to="http://x"), plan_of()) == ("", "")


def test_a_farm_named_by_its_folder_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert Target.from_json(Target(to="run").to_json()).to == str(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"models": 1}', '{"models": [], "x": 1}'])
def test_what_is_no_target_is_no_farm_in_particular(text: str) -> None:
    assert Target.from_json(text) == Target()


def plan_with(target: Target) -> Plan:
    return plan_of(provenance={"target": target.to_json()})


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (Target(("/tmp/a.py:Beam",)), "/tmp/a.py:Beam"),
        (Target(to="http://old:1"), "the farm at http://old:1"),
        (Target(("/tmp/a.py",), dask="tcp://x:8786"), "on the Dask cluster at tcp://x:8786"),
        (Target(("/tmp/a.py",), mpi=4, mpi_launch="sh -c boo"), "4 MPI ranks, started by `sh -c"),
        (Target(("docker://a --privileged",)), "docker://a --privileged"),
        (Target(("lines:sh -c boo",)), "lines:sh -c boo"),
        (Target(("/tmp/a.fmu",)), "/tmp/a.fmu"),
    ],
)
def test_what_a_file_names_is_run_for_the_user_who_signed_it_only(
    target: Target, shown: str
) -> None:
    path = Path("s.h5")
    assert kept_target(signed(plan_with(target)), path, trust=False) == target
    assert kept_target(plan_with(target), path, trust=True) == target
    with pytest.raises(click.ClickException, match=r"not written by you.*--trust") as refusal:
        kept_target(plan_with(target), path, trust=False)
    assert shown in str(refusal.value)


def test_a_file_that_names_nothing_needs_no_signature() -> None:
    assert kept_target(plan_of(), Path("s.h5"), trust=False) == Target()


def test_a_package_is_not_looked_up_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a copied signature would run a package beside the copy of the file."""
    plan = signed(plan_with(Target(("json.tool:main",))))
    assert kept_target(plan, Path("s.h5"), trust=False).models == ("json.tool:main",)
    before = Path.cwd()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.ClickException, match=r"json\.tool:main is looked up") as refusal:
        kept_target(plan, Path("s.h5"), trust=False)
    assert f"started in {before}" in str(refusal.value)
    assert kept_target(plan, Path("s.h5"), trust=True).models == ("json.tool:main",)


def test_what_models_said_stays_when_they_cannot_be_loaded(folder: Path) -> None:
    (folder / "bad.py").write_text("import no_such_module_anywhere\n")
    target = Target((str(folder / "bad.py"),), workers=1)
    with (
        pytest.raises(click.ClickException, match="no_such_module_anywhere"),
        open_farm(target, folder / "s.h5"),
    ):
        pass
    assert any((folder / "s.h5.run" / "logs").iterdir())
    target = Target((str(folder / "bad.py"),), workers=1, mpi=2, mpi_launch="sruhn")
    with (
        pytest.raises(click.ClickException, match=r"no launcher 'sruhn' here[^/]*$"),
        open_farm(target, folder / "t.h5"),
    ):
        pass
    assert not (folder / "t.h5.run").exists()


@pytest.mark.parametrize(
    "error", [SweepError("no room"), pytest.param(KeyboardInterrupt(), marks=pytest.mark.slow)]
)
def test_nothing_stays_of_a_sweep_that_is_refused(folder: Path, error: BaseException) -> None:
    target = Target((str(folder / "beam.py"),), workers=1)
    with pytest.raises(type(error)), open_farm(target, folder / "s.h5"):
        raise error
    assert not (folder / "s.h5.run").exists()


def test_what_models_said_stays_when_an_answer_is_an_error(folder: Path) -> None:
    target = Target((str(folder / "beam.py"),), workers=1)
    with pytest.raises(ModelFailed), open_farm(target, folder / "s.h5"):
        raise ModelFailed("no convergence")
    assert any((folder / "s.h5.run" / "logs").iterdir())


def test_models_are_served_while_the_block_lasts_without_the_kernels_word_on_cpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has no `sched_getaffinity`."""
    monkeypatch.chdir(folder)
    monkeypatch.delattr(os, "sched_getaffinity")
    with open_farm(Target(("beam.py",)), folder / "s.h5") as opened:
        assert opened.client.status()["workers"]
        assert (folder / "s.h5.run" / "farm.json").exists()
    assert not (folder / "s.h5.run").exists()


def test_a_running_farm_is_connected_to_anew(beam_farm: Served, tmp_path: Path) -> None:
    with open_farm(Target(to=str(beam_farm.folder)), tmp_path / "s.h5") as farm:
        assert farm.reconnect is not None
        again = farm.reconnect()
        assert again.models() == ["beam"]


def test_a_farm_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable), open_farm(Target(to=str(tmp_path)), tmp_path / "s.h5"):
        pass


def test_a_sweep_waits_for_workers_with_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Farm(tmp_path)
    running.expect("surrogate")
    running.expect_later("beam", "kind 'gpu': 1 job is pending", asked=3)
    try:
        with open_farm(Target(to=str(tmp_path)), tmp_path / "s.h5", "beam") as farm:
            assert farm.client.model("beam").name == "beam"
    finally:
        running.close()
    problem = "waiting: model 'beam' is not served here; the models are: surrogate"
    assert capsys.readouterr().err == f"{problem}; but kind 'gpu': 1 job is pending\n"


@pytest.mark.parametrize(
    "values",
    [
        {"time_limit_s": 0.5, "workers": 3, "record": "a.record", "reuse": True},
        {"mpi": 2, "mpi_launch": "mpirun {ranks}", "workers": 3},
        {"dask": "tcp://x:1", "dask_slots": 7, "dask_resources": ["GPU=1", "MEM=2"]},
    ],
)
def test_options_of_a_sweep_are_settings_of_its_farm(
    folder: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []

    def start(models: list[str], settings: Settings, **_: Any) -> None:
        seen.append(settings)
        raise click.ClickException("that is all")

    monkeypatch.setattr("farm.cli.sweep_farm.Farm", start)
    point = ("--param", "load=1:2", "--fix", "E=1,2,4", "--design", "grid:2", "-o", "s.h5")
    _, _, errors = run_here("sweep", "run", "beam.py", *options_of(values), *point, cwd=folder)
    assert errors == "farm: error: that is all\n"
    (settings,) = seen
    expected = settings_of(values)
    assert {name: getattr(settings, name) for name in values} == {
        name: getattr(expected, name) for name in values
    }


@pytest.mark.slow
def test_a_point_that_exceeds_the_time_limit_fails(folder: Path) -> None:
    status, _, errors = run_farm(
        *("sweep", "run", "beam.py", "--time-limit", "0.5", "-n", "1", "--param", "load=1:2"),
        *("--fix", "E=1,2,4", "--fix", "sleep=600", "--design", "grid:1", "-o", "s.h5"),
        cwd=folder,
    )
    assert status != 0
    assert "time limit of 0.5 s" in errors


@pytest.mark.slow
def test_a_dask_cluster_runs_the_points(folder: Path) -> None:
    with dask_cluster(folder) as cluster:
        cluster.add_worker(2)
        status, _, errors = run_farm(
            *("sweep", "run", "beam.py", "--dask", cluster.address, "--param", "load=1:2"),
            *("--fix", "E=1,2,4", "--design", "grid:20", "-o", "s.h5"),
            cwd=folder,
        )
        assert status == 0, errors
        with h5py.File(folder / "s.h5") as file:
            np.testing.assert_allclose(file["out_0"][:, 0], np.linspace(1.0, 2.0, 20))
            names = [name.decode() for name in file["workers/name"]]
        assert all("/tcp://127.0.0.1" in name for name in names)
        assert cluster.tasks() == []


@pytest.mark.slow
def test_groups_of_mpi_ranks_run_the_points(folder: Path) -> None:
    (folder / "total.py").write_text(TOTAL)
    status, _, errors = run_farm(
        *("sweep", "run", "total.py", "--mpi", "2", "-n", "1", "--param", "x=1:2"),
        *("--design", "grid:5", "-o", "s.h5"),
        cwd=folder,
    )
    assert status == 0, errors
    with h5py.File(folder / "s.h5") as file:
        np.testing.assert_allclose(file["out_0"][:, 0], 3.0 * np.linspace(1.0, 2.0, 5))


def test_nothing_stays_where_there_is_no_cluster(folder: Path) -> None:
    target = Target((str(folder / "beam.py"),), dask="nowhere")
    with pytest.raises(Unavailable, match="neither"), open_farm(target, folder / "s.h5"):
        pass
    assert not (folder / "s.h5.run").exists()


def test_the_folder_of_a_farm_that_lives_stays(folder: Path) -> None:
    target = Target((str(folder / "beam.py"),), workers=1)
    (folder / "s.h5.run").mkdir()
    living = Connection("tcp://x:1", host=socket.gethostname(), pid=os.getppid())
    write_connection(folder / "s.h5.run" / "farm.json", living)
    with pytest.raises(Unavailable, match="runs in"), open_farm(target, folder / "s.h5"):
        pass
    assert (folder / "s.h5.run" / "farm.json").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(dask="tcp://x:1"), "Dask"),
        (Target(("a.py",), time_limit_s=1.0, dask="tcp://x:1"), "Dask"),
        (Target(("a.py",), mpi=2, dask="tcp://x:1"), "--mpi needs"),
        (Target(("a.py",), to="http://x"), "not both"),
    ],
)
def test_what_cannot_be_is_said(target: Target, words: str, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=words), open_farm(target, tmp_path / "s.h5"):
        pass


def test_the_farm_of_the_command_line_goes_before_that_of_the_file(tmp_path: Path) -> None:
    target = Target(to="http://node:1")
    assert chosen_farm(target, plan_of(), tmp_path / "s.h5", trust=False) is target
