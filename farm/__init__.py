"""farm turns any expensive model into a service that a whole cluster works for.

The names below are the public interface: models and clients need no other module. In the package,
begin with `model.py` and `call.py`, then follow the journey of a call in docs/architecture.md.
Importing `farm` loads only the names that a model needs. Clients, sweeps and servers are imported
when their name is first used, so that a worker starts as fast as its model loads.
"""

import importlib
from typing import TYPE_CHECKING, Any

from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError
from farm.functions import model
from farm.model import Config, Inputs, Model, tensor
from farm.version import __version__

if TYPE_CHECKING:
    from farm import ops as ops
    from farm.client import Client, Executor, RemoteModel, call_id, chain, connect
    from farm.loading import (
        load_failures,
        load_pandas,
        load_progress,
        load_xarray,
        sensitivity,
    )
    from farm.protocols.graphpipe.remote import GraphpipeModel
    from farm.protocols.kserve.rest.remote import KserveModel
    from farm.protocols.mip.remote import MipModel
    from farm.server.in_process import serve
    from farm.sweep.api import Point, Sweep, sweep
    from farm.sweep.errors import SweepError
    from farm.sweep.extend import extend_sweep
    from farm.sweep.file.progress import Progress
    from farm.sweep.sensitivity.ranking import Sensitivity
    from farm.sweep.space.grammar import choice
    from farm.sweep.space.parameters import Integer as integer
    from farm.sweep.space.parameters import Log as log
    from farm.sweep.space.parameters import Normal as normal
    from farm.worker.command import CommandModel
    from farm.worker.frameworks.fmu import FmuModel
    from farm.worker.frameworks.jax import jax_model
    from farm.worker.frameworks.onnx import OnnxModel
    from farm.worker.frameworks.skops import SkopsModel
    from farm.worker.frameworks.torch import TorchModel
    from farm.worker.frameworks.xgboost import XgboostModel
    from farm.worker.lines import LinesModel
else:
    _LATER = {
        "Client": ("farm.client", "Client"),
        "CommandModel": ("farm.worker.command", "CommandModel"),
        "Executor": ("farm.client", "Executor"),
        "FmuModel": ("farm.worker.frameworks.fmu", "FmuModel"),
        "GraphpipeModel": ("farm.protocols.graphpipe.remote", "GraphpipeModel"),
        "KserveModel": ("farm.protocols.kserve.rest.remote", "KserveModel"),
        "LinesModel": ("farm.worker.lines", "LinesModel"),
        "MipModel": ("farm.protocols.mip.remote", "MipModel"),
        "OnnxModel": ("farm.worker.frameworks.onnx", "OnnxModel"),
        "Point": ("farm.sweep.api", "Point"),
        "Progress": ("farm.sweep.file.progress", "Progress"),
        "RemoteModel": ("farm.client", "RemoteModel"),
        "Sensitivity": ("farm.sweep.sensitivity.ranking", "Sensitivity"),
        "SkopsModel": ("farm.worker.frameworks.skops", "SkopsModel"),
        "Sweep": ("farm.sweep.api", "Sweep"),
        "SweepError": ("farm.sweep.errors", "SweepError"),
        "TorchModel": ("farm.worker.frameworks.torch", "TorchModel"),
        "XgboostModel": ("farm.worker.frameworks.xgboost", "XgboostModel"),
        "call_id": ("farm.client", "call_id"),
        "chain": ("farm.client", "chain"),
        "choice": ("farm.sweep.space.grammar", "choice"),
        "connect": ("farm.client", "connect"),
        "extend_sweep": ("farm.sweep.extend", "extend_sweep"),
        "integer": ("farm.sweep.space.parameters", "Integer"),
        "jax_model": ("farm.worker.frameworks.jax", "jax_model"),
        "log": ("farm.sweep.space.parameters", "Log"),
        "normal": ("farm.sweep.space.parameters", "Normal"),
        "load_failures": ("farm.loading", "load_failures"),
        "load_pandas": ("farm.loading", "load_pandas"),
        "load_progress": ("farm.loading", "load_progress"),
        "load_xarray": ("farm.loading", "load_xarray"),
        "sensitivity": ("farm.loading", "sensitivity"),
        "serve": ("farm.server.in_process", "serve"),
        "sweep": ("farm.sweep.api", "sweep"),
    }

    def __getattr__(name: str) -> Any:
        if name == "ops":  # a package: its import binds the name
            return importlib.import_module("farm.ops")
        if name not in _LATER:
            raise AttributeError(f"module 'farm' has no attribute {name!r}")
        module, attribute = _LATER[name]
        found = globals()[name] = getattr(importlib.import_module(module), attribute)
        return found

    # The first import of the package `farm.sweep` binds the name to it; from here on the name is
    # looked up above, which finds the function.
    importlib.import_module("farm.sweep")
    del sweep  # the import has bound it


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted([*__all__, "ops"])


__all__ = [
    "Call",
    "Client",
    "CommandModel",
    "Config",
    "Derivative",
    "Executor",
    "FarmError",
    "FmuModel",
    "GraphpipeModel",
    "Hints",
    "Inputs",
    "KserveModel",
    "LinesModel",
    "MipModel",
    "Model",
    "ModelInfo",
    "OnnxModel",
    "Operation",
    "Point",
    "Progress",
    "RemoteModel",
    "Result",
    "Sensitivity",
    "SkopsModel",
    "Sweep",
    "SweepError",
    "TensorInfo",
    "TorchModel",
    "XgboostModel",
    "__version__",
    "call_id",
    "chain",
    "choice",
    "connect",
    "extend_sweep",
    "integer",
    "jax_model",
    "load_failures",
    "load_pandas",
    "load_progress",
    "load_xarray",
    "log",
    "model",
    "normal",
    "sensitivity",
    "serve",
    "sweep",
    "tensor",
]
