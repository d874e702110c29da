"""farm turns any expensive model into a service that a whole cluster works for.

What a model needs is here at once. Clients, sweeps and servers are imported when their name is
first used, so that a worker starts as fast as the model it loads.
"""

import importlib
from typing import TYPE_CHECKING, Any

from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError
from farm.model import Config, Inputs, Model, model
from farm.version import __version__

if TYPE_CHECKING:
    from farm.client import Client, Executor, RemoteModel, connect
    from farm.server.inline import serve
    from farm.sweep.api import Sweep, sweep
    from farm.sweep.parameters import Integer as integer
    from farm.sweep.parameters import Log as log
    from farm.sweep.parameters import Normal as normal
    from farm.sweep.parameters import choice
    from farm.worker.command import CommandModel
    from farm.worker.graphpipe import GraphpipeModel
    from farm.worker.jax import jax_model
    from farm.worker.kserve import KserveModel
    from farm.worker.mip import MipModel
    from farm.worker.onnx import OnnxModel
    from farm.worker.torch import TorchModel
else:
    _LATER = {
        "Client": ("farm.client", "Client"),
        "CommandModel": ("farm.worker.command", "CommandModel"),
        "Executor": ("farm.client", "Executor"),
        "GraphpipeModel": ("farm.worker.graphpipe", "GraphpipeModel"),
        "KserveModel": ("farm.worker.kserve", "KserveModel"),
        "MipModel": ("farm.worker.mip", "MipModel"),
        "OnnxModel": ("farm.worker.onnx", "OnnxModel"),
        "RemoteModel": ("farm.client", "RemoteModel"),
        "Sweep": ("farm.sweep.api", "Sweep"),
        "TorchModel": ("farm.worker.torch", "TorchModel"),
        "choice": ("farm.sweep.parameters", "choice"),
        "connect": ("farm.client", "connect"),
        "integer": ("farm.sweep.parameters", "Integer"),
        "jax_model": ("farm.worker.jax", "jax_model"),
        "log": ("farm.sweep.parameters", "Log"),
        "normal": ("farm.sweep.parameters", "Normal"),
        "serve": ("farm.server.inline", "serve"),
    }

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'farm' has no attribute {name!r}")
        module, attribute = _LATER[name]
        found = globals()[name] = getattr(importlib.import_module(module), attribute)
        return found

    # The package takes the name when it is first imported; the function has it from then on.
    importlib.import_module("farm.sweep")

    def sweep(*arguments: Any, **options: Any) -> Any:
        """Evaluate a model at many points into one HDF5 file: see `farm.sweep.api.sweep`."""
        return importlib.import_module("farm.sweep.api").sweep(*arguments, **options)


__all__ = [
    "Call",
    "Client",
    "CommandModel",
    "Config",
    "Derivative",
    "Executor",
    "FarmError",
    "GraphpipeModel",
    "Hints",
    "Inputs",
    "KserveModel",
    "MipModel",
    "Model",
    "ModelInfo",
    "OnnxModel",
    "Operation",
    "RemoteModel",
    "Result",
    "Sweep",
    "TensorInfo",
    "TorchModel",
    "__version__",
    "choice",
    "connect",
    "integer",
    "jax_model",
    "log",
    "model",
    "normal",
    "serve",
    "sweep",
]
