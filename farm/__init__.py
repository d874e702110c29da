"""farm turns any expensive model into a service that a whole cluster works for."""

from farm.call import Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError
from farm.model import Config, Inputs, Model, model

__version__ = "0.1.0"

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
    "model",
]
