"""farm turns any expensive model into a service that a whole cluster works for."""

from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError
from farm.model import Config, Inputs, Model, model
from farm.version import __version__

__all__ = [
    "Call",
    "Config",
    "Derivative",
    "FarmError",
    "Hints",
    "Inputs",
    "Model",
    "ModelInfo",
    "Operation",
    "Result",
    "TensorInfo",
    "__version__",
    "model",
]
