"""farm turns any expensive model into a service that a whole cluster works for.

The names below are the public interface: models and clients need no other module. In the package,
begin with `model.py` and `call.py`, then follow the journey of a call in docs/architecture.md.
Importing `farm` loads none of them, nor numpy: each is imported when its name is first used, so
that `farm --help` is quick and a worker starts as fast as its model loads.
"""

import importlib
import sys
from types import ModuleType

from farm.version import __version__

TYPE_CHECKING = False  # true for type checkers; importing `typing` for it would take longer

if TYPE_CHECKING:
    from farm import ops as ops
    from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
    from farm.client import Client, Executor, RemoteModel, call_id, chain, connect
    from farm.errors import FarmError
    from farm.functions import model
    from farm.loading import load_failures, load_pandas, load_progress, load_xarray, sensitivity
    from farm.model import Config, Inputs, Model, tensor
    from farm.protocols.graphpipe.remote import GraphpipeModel
    from farm.protocols.kserve.rest.remote import KserveModel
    from farm.protocols.mip.remote import MipModel
    from farm.sequences import Sequence
    from farm.server.in_process import serve
    from farm.sweep.api import extend_sweep, sweep
    from farm.sweep.errors import SweepError
    from farm.sweep.file.progress import Progress
    from farm.sweep.sensitivity.analysis import Sensitivity
    from farm.sweep.session import Point, Sweep
    from farm.sweep.space.grammar import choice
    from farm.sweep.space.parameters import Integer as integer
    from farm.sweep.space.parameters import Log as log
    from farm.sweep.space.parameters import Normal as normal
    from farm.worker.command import CommandModel
    from farm.worker.frameworks.fitted import SkopsModel, XgboostModel
    from farm.worker.frameworks.fmu import FmuModel
    from farm.worker.frameworks.jax import jax_model
    from farm.worker.frameworks.onnx import OnnxModel
    from farm.worker.frameworks.torch import TorchModel
    from farm.worker.lines import LinesModel
else:
    _NAMES = {
        "farm.call": "Call Derivative Hints ModelInfo Operation Result TensorInfo",
        "farm.client": "Client Executor RemoteModel call_id chain connect",
        "farm.errors": "FarmError",
        "farm.functions": "model",
        "farm.loading": "load_failures load_pandas load_progress load_xarray sensitivity",
        "farm.model": "Config Inputs Model tensor",
        "farm.protocols.graphpipe.remote": "GraphpipeModel",
        "farm.protocols.kserve.rest.remote": "KserveModel",
        "farm.protocols.mip.remote": "MipModel",
        "farm.sequences": "Sequence",
        "farm.server.in_process": "serve",
        "farm.sweep.api": "extend_sweep sweep",
        "farm.sweep.errors": "SweepError",
        "farm.sweep.file.progress": "Progress",
        "farm.sweep.sensitivity.analysis": "Sensitivity",
        "farm.sweep.session": "Point Sweep",
        "farm.sweep.space.grammar": "choice",
        "farm.sweep.space.parameters": "Integer Log Normal",
        "farm.worker.command": "CommandModel",
        "farm.worker.frameworks.fitted": "SkopsModel XgboostModel",
        "farm.worker.frameworks.fmu": "FmuModel",
        "farm.worker.frameworks.jax": "jax_model",
        "farm.worker.frameworks.onnx": "OnnxModel",
        "farm.worker.frameworks.torch": "TorchModel",
        "farm.worker.lines": "LinesModel",
    }
    _RENAMED = {"Integer": "integer", "Log": "log", "Normal": "normal"}
    _LATER = {
        _RENAMED.get(name, name): (module, name)
        for module, names in _NAMES.items()
        for name in names.split()
    }

    _MODULES = frozenset(("call", "dtypes", "errors", "functions", "ops", "units"))
    """Modules that `farm.NAME` imports, so that `farm.errors.WorkerLost` needs only `farm`."""

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"farm.{name}")  # this binds the name
        if name not in _LATER:
            raise AttributeError(f"module 'farm' has no attribute {name!r}")
        module, attribute = _LATER[name]
        found = globals()[name] = getattr(importlib.import_module(module), attribute)
        return found

    class _Package(ModuleType):
        """This package, in which `farm.model` and `farm.sweep` are the functions.

        The import of a module binds its name in its package: here that would replace them.
        """

        def __setattr__(self, name: str, value: object) -> None:
            if not (name in _LATER and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    sys.modules[__name__].__class__ = _Package


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
    "Sequence",
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
