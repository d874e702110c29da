"""The kinds of files and programs that are models, in tables; a new kind is a line here.

Classes are named as text, "package.module:Class", and imported when the first such file is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.descriptors import Remote


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of model file.

    model: the class that takes the path; it raises ValueError, ImportError or FarmErrors. whole:
    the answers depend on nothing but the file, so that its content is the version of the model.
    """

    model: str
    whole: bool = True


_LINES = FileKind("farm.worker.lines:script", whole=False)
_XGBOOST = FileKind("farm.worker.frameworks.fitted:XgboostModel")

FILES: Mapping[str, FileKind] = {
    ".onnx": FileKind("farm.worker.frameworks.onnx:OnnxModel"),
    ".pt": FileKind("farm.worker.frameworks.torch:TorchModel"),
    ".pt2": FileKind("farm.worker.frameworks.torch:TorchModel"),
    ".skops": FileKind("farm.worker.frameworks.fitted:SkopsModel"),
    ".ubj": _XGBOOST,
    ".json": _XGBOOST,
    ".fmu": FileKind("farm.worker.frameworks.fmu:FmuModel", whole=False),
    ".R": _LINES,
    ".r": _LINES,
    ".jl": _LINES,
}
"""Files that are models by their extension, besides `.py`."""

ONE_AT_A_TIME = (".fmu", ".R", ".r", ".jl")
"""Files whose model is one program or instance."""

PICKLES = (".pkl", ".pickle", ".joblib")
"""Extensions of files that farm refuses: to read a pickle is to run it."""

COMMAND = "lines:"
"""The start of a model that is a program of the line protocol."""

CONTAINERS = Remote(
    schemes=("docker", "podman", "apptainer"),
    form="docker://IMAGE",
    models_at="farm.worker.containers.model:models_at",
)
"""Container images with an UM-Bridge server in them, which each model process starts for itself."""
