"""Farms in which every setting has an effect that can be seen.

Settings that fit together are set in one farm, a `Scene`. Its checks run in order.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support import effects_at_doors, effects_on_calls, effects_on_workers
from tests.support.certificates import certificate
from tests.support.dask_cluster import dask_cluster
from tests.support.restarted_farm import free_port
from tests.support.setting_ways import WAYS, There

MODELS = """
import os, pathlib, time
import farm

class Model(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        if "note" in config:
            with open(config["note"], "a") as file:
                print(self.name, file=file)
        if "say" in config:
            print(config["say"], flush=True)
        if "raise" in config:
            raise ValueError(config["raise"])
        if "exit" in config:
            os._exit(config["exit"])
        time.sleep(config.get("sleep", 0.0))
        while "until" in config and not os.path.exists(config["until"]):
            time.sleep(0.005)
        return inputs["x"]

class Beam(Model):
    name = "beam"

class Plate(Model):
    name, repeatable = "plate", False

class Slab(Model):
    name, repeatable = "slab", False

class Shell(Model):
    name, repeatable = "shell", False

class Quick(Model):
    name, repeatable = "quick", False
"""
"""Models that need nothing else, so that farm knows their version. Only `beam` is recorded."""

PARALLEL = """
import farm

@farm.model(inputs={"x": 1}, outputs={"ranks": 1})
def group(x):
    return group.comm.size

@farm.model(inputs={"x": 1}, outputs={"gpus": 1})
def spare(x):
    from distributed import get_worker
    return get_worker().state.available_resources["GPU"]
"""

FILES = {"models.py": MODELS, "parallel.py": PARALLEL}

ALL = tuple(f"models.py:{name}" for name in ("Beam", "Plate", "Slab", "Shell", "Quick"))


@dataclass(frozen=True)
class Scene:
    """A farm in which several settings have an effect.

    values: makes the settings for a farm that is started in a folder; checks: by setting.
    models: those that it serves; ways: of setting; around: a context in which it runs.
    """

    values: Callable[[Path], dict[str, Any]]
    checks: Mapping[str, Callable[[There], None]]
    models: Sequence[str] = ALL
    ways: Sequence[str] = WAYS
    around: Callable[[Path], AbstractContextManager[object]] = contextlib.nullcontext


HOST = "127.0.0.2"


def _open(folder: Path) -> dict[str, Any]:
    certificate(folder)
    return {
        "workers": 2,
        "fork": False,
        "host": HOST,
        "port": free_port("127.0.0.1", HOST),
        "unix": "http.sock",
        "grpc_port": free_port("127.0.0.1", HOST),
        "grpc_tls_cert": "cert.pem",
        "grpc_tls_key": "key.pem",
        "auth": "always",
        "allow_origin": ["https://hub.example", "https://lab.example"],
        "insecure": True,
        "dir": "elsewhere",
        "max_body_bytes": 8000,
        "max_held_bytes": 10_000,
        "non_finite": "null",
        "log_format": "json",
        "otel": True,
        "record": "kept.record",
        "reuse": True,
        "max_queued": 3,
        "max_queued_per_client": 2,
        "model_priority": ["shell=7", "slab=-1"],
        "reserve": ["quick=1"],
        "grace_s": 0.2,
        "graphpipe_default": "plate",
        "kserve_dialect": "triton",
        "mip": ["beam=127.0.0.1:0", "plate=unix:plate.sock"],
        "mip_max_bytes": 700,
        "aepsych": "127.0.0.1:0",
        "journal": "kept.db",
    }


def _losing(_: Path) -> dict[str, Any]:
    return {"port": 0, "dir": "losing", "retries": 0, "time_limit_s": 0.5}


def _empty(_: Path) -> dict[str, Any]:
    return {
        "port": 0,
        "dir": "empty",
        "workers": 0,
        "transport": "zmq",
        "heartbeat_s": 1,
        "start_timeout_s": 0.5,
    }


def _groups(folder: Path) -> dict[str, Any]:
    (folder / "launch.sh").write_text(
        f'PATH={Path(sys.executable).parent}:$PATH\necho "$1" > launched\nexec mpiexec -n "$@"\n'
    )
    return {"port": 0, "dir": "groups", "mpi": 2, "mpi_launch": "sh launch.sh {ranks}"}


def _on_dask(_: Path) -> dict[str, Any]:
    return {
        "port": 0,
        "dir": "on-dask",
        "dask": "scheduler.json",
        "dask_slots": 5,
        "dask_resources": ["GPU=1"],
    }


@contextlib.contextmanager
def _dask(folder: Path) -> Iterator[None]:
    """Run a cluster, whose scheduler's file is in the folder."""
    with dask_cluster(folder) as cluster:
        cluster.add_worker(2, resources="GPU=1")
        yield


def _supervised(_: Path) -> dict[str, Any]:
    return {"port": 0, "dir": "supervised", "supervise": True}


def _checks(module: ModuleType, *names: str) -> dict[str, Callable[[There], None]]:
    return {name: getattr(module, name) for name in names}


SCENES = {
    "open": Scene(
        _open,
        _checks(effects_on_workers, "workers", "fork", "dir", "log_format", "otel")
        | _checks(effects_at_doors, "host", "port", "unix", "grpc_port", "grpc_tls_cert")
        | _checks(effects_at_doors, "grpc_tls_key", "auth", "allow_origin", "insecure")
        | _checks(effects_at_doors, "max_body_bytes", "max_held_bytes", "non_finite")
        | _checks(effects_at_doors, "graphpipe_default", "kserve_dialect", "mip")
        | _checks(effects_at_doors, "mip_max_bytes", "aepsych", "journal")
        | _checks(effects_on_calls, "record", "reuse", "max_queued", "max_queued_per_client")
        | _checks(effects_on_calls, "model_priority", "reserve", "grace_s"),
    ),
    "losing": Scene(_losing, _checks(effects_on_calls, "retries", "time_limit_s")),
    "empty": Scene(
        _empty,
        _checks(effects_on_workers, "transport", "heartbeat_s", "start_timeout_s"),
    ),
}

SLOW_SCENES = {
    "groups": Scene(
        _groups, _checks(effects_on_workers, "mpi", "mpi_launch"), models=("parallel.py:group",)
    ),
    "on-dask": Scene(
        _on_dask,
        _checks(effects_on_workers, "dask", "dask_slots", "dask_resources"),
        models=("models.py:Plate", "parallel.py:spare"),
        around=_dask,
    ),
    # A program is refused: it cannot be started again.
    "supervised": Scene(_supervised, _checks(effects_on_workers, "supervise"), ways=WAYS[:-1]),
}
"""Scenes that take more than a second of processor time."""
