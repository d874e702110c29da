"""ONNX files as models, run by onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.machine.resources import cpus
from farm.wording import imported, one_line
from farm.worker.frameworks.graph import GraphModel, Port

DTYPES = {"float": "float32", "double": "float64", "string": "bytes"} | {
    name: name
    for name in (
        *("bool", "float16", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
}
"""farm's dtype for each element type in the brackets of `tensor(...)`."""

GPU_PROVIDERS = ("CUDAExecutionProvider", "ROCMExecutionProvider", "MIGraphXExecutionProvider")

Provider = str | tuple[str, dict[str, Any]]


class OnnxModel(GraphModel):
    """A model in an ONNX file, which gives names, types and sizes of its tensors.

    path: the file; its external data files are expected beside it.
    max_batch: rows of one evaluation; None: 64 if the file has a batch axis, else 1. A batch axis
    is
        a first axis of any size, the same in all tensors, whose rows do not affect one another.
    providers: onnxruntime's execution providers, best first; None: a GPU's if there is one, and
        the CPU's. name: the name it is served under; None: the file's name without `.onnx`.

    Raises ValueError if the file cannot be served, ImportError without the extra `onnx`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_batch: int | None = None,
        providers: Sequence[Provider] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = Path(path).stem if name is None else name
        runtime = imported("onnx", "ONNX files need onnxruntime", "onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = cpus()
        # Spinning threads would take processor time from other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4  # a failed call raises an exception instead
        wanted = providers_here(runtime) if providers is None else providers
        try:
            self._session = runtime.InferenceSession(os.fspath(path), options, providers=wanted)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ValueError(f"onnxruntime cannot open {str(path)!r}: {one_line(error)}") from error
        self.providers: list[str] = self._session.get_providers()
        self.description = self._session.get_modelmeta().description or f"ONNX model {self.name}"
        self._inputs = [port_of(node) for node in self._session.get_inputs()]
        outputs = [port_of(node) for node in self._session.get_outputs()]
        self.declare(self._inputs, outputs, max_batch)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the graph's outputs. Raises InvalidInput for strings that are not UTF-8."""
        feed = {port.name: _fed(x) for port, x in zip(self._inputs, arrays, strict=True)}
        outputs: list[Array] = self._session.run(None, feed)
        return outputs


def providers_here(runtime: Any) -> list[str]:
    """Return the execution providers for this process, best first: a GPU's if one is visible."""
    offered = runtime.get_available_providers()
    no_gpu = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    gpu = [] if no_gpu else [name for name in GPU_PROVIDERS if name in offered]
    return [*gpu, "CPUExecutionProvider"]


def port_of(node: Any) -> Port:
    """Return the port of an input or output. Raises ValueError for an unsupported type."""
    kind = str(node.type)
    dtype = DTYPES.get(kind.removeprefix("tensor(").removesuffix(")"))
    if dtype is None or not kind.startswith("tensor("):
        hint = ""
        if kind.startswith("seq(map("):
            hint = "; convert scikit-learn models with options={'zipmap': False}"
        raise ValueError(
            f"{node.name!r} is {kind}; expected a tensor of {', '.join(sorted(DTYPES))}{hint}"
        )
    known = (n if isinstance(n, str) or (isinstance(n, int) and n >= 0) else "" for n in node.shape)
    return Port(node.name, tuple(known), dtype)


def _fed(array: Array) -> Array:
    if array.dtype != object:
        return array
    try:
        texts = [text.decode() for text in array.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"ONNX strings are UTF-8: {error}") from None
    decoded = np.empty(len(texts), object)
    decoded[:] = texts
    return decoded.reshape(array.shape)
