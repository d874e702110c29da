"""PyTorch graphs in files as models: torch.export (.pt2) and TorchScript (.pt).

Derivatives come from autograd. The actions of the Hessian and of the Jacobian are computed as
derivatives of a gradient, because forward mode does not support every operator.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import BFLOAT16, Array, Operation, TensorInfo, numpy_dtype
from farm.declared import Tensors
from farm.errors import InvalidOutput, UnsupportedFeature
from farm.functions import DifferentiableModel, offered, vectors_of
from farm.model import Config, Inputs, info_of
from farm.wording import imported
from farm.worker.frameworks.graph import GraphModel, Port, made_up

BATCH = "batch"
"""The symbol of the batch axis for files without symbols."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)

log = logging.getLogger(__name__)


class TorchModel(DifferentiableModel, GraphModel):
    """A model in a file of `torch.export.save` (.pt2) or `torch.jit.save` (.pt).

    path: the file. A file from `torch.save` is a pickle and refused.
    inputs, outputs: required for TorchScript, whose files lack them: names and shapes in the
        order of `forward`, without the batch axis; the dtype is that of the file unless a
        TensorInfo sets another. For torch.export they only name the file's tensors.
    max_batch: rows of one evaluation. None: for torch.export 64, or the maximum that the file
        allows, if it has a batch axis; else 1. For TorchScript, above 1 means that there is one.
    device: where it runs; None: `cuda` if torch finds one, else `cpu`.
    name: the name it is served under; None: the file's name without its extension.

    It offers the derivatives that autograd can compute. Raises ValueError if the file cannot be
    served, ImportError without the extra `torch`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        inputs: Tensors | None = None,
        outputs: Tensors | None = None,
        max_batch: int | None = None,
        device: str | None = None,
        name: str | None = None,
    ) -> None:
        path = Path(path)
        self.name = path.stem if name is None else name
        self._torch = torch = imported("torch", "PyTorch files need torch", "torch", "torch.export")
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.inputs, self.outputs = inputs or {}, outputs or {}
        said = info_of(self, {})
        if path.suffix == ".pt2":
            self._function, found, most = exported(torch, path, self.device)
            self._inputs = _named(found[0], said.inputs, "input")
            self._outputs = _named(found[1], said.outputs, "output")
        else:
            if inputs is None or outputs is None:
                raise ValueError(
                    f"{path.name} is TorchScript, which does not say its shapes; serve a file with "
                    f"`import farm; model = farm.TorchModel({str(path)!r}, "
                    'inputs={"x": 3}, outputs={"y": 1}, max_batch=64)` and your sizes'
                )
            self._function, dtype = scripted(torch, path, self.device)
            lead = (BATCH,) if max_batch is not None and max_batch > 1 else ()
            self._inputs = [_declared(tensor, inputs, dtype, lead) for tensor in said.inputs]
            self._outputs = [_declared(tensor, outputs, dtype, lead) for tensor in said.outputs]
            most = None
        if max_batch is not None and most is not None and max_batch > most:
            raise ValueError(f"max_batch is {max_batch}, but {path.name} takes {most} rows at most")
        strict = path.suffix != ".pt2"
        self.declare(self._inputs, self._outputs, max_batch, strict=strict)
        self.max_batch = min(self.max_batch, most or self.max_batch)
        self.operations = self._offered()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the graph's outputs."""
        with self._torch.no_grad():
            outputs = self._call([self._tensor(x) for x in arrays])
            return [self._array(y) for y in outputs]

    def differentiate(
        self,
        operation: Operation,
        wrt: tuple[int, ...],
        inputs: Inputs,
        vectors: Sequence[Array],
        config: Config,
    ) -> Any:
        """Return a derivative by autograd; that along vec as the derivative of a derivative."""
        both = operation is Operation.VALUE_AND_GRADIENT
        if both:
            self.check_symbols(list(inputs.values()))
        x, outputs = self._traced(inputs, *wrt)
        y, by = outputs[wrt[0]], x[wrt[1]]
        if operation is Operation.APPLY_JACOBIAN:
            u = self._torch.zeros_like(y, requires_grad=True)
            pulled = self._pulled(y, by, u, again=True)
            return self._numbers(self._pulled(pulled, u, self._like(vectors[0], by)), y)
        weights = self._like(vectors[0], y)
        if operation is Operation.APPLY_HESSIAN:  # in exchanged order of differentiation
            other = x[wrt[2]]
            pulled = self._pulled(y, other, weights, again=True)
            return self._numbers(self._pulled(pulled, by, self._like(vectors[1], other)), by)
        gradient = self._numbers(self._pulled(y, by, weights), by)
        if not both:
            return gradient
        arrays = [self._array(output[0] if self.batched else output) for output in outputs]
        return dict(zip(self.outputs, arrays, strict=True)), gradient

    def _call(self, tensors: list[Any]) -> list[Any]:
        value = self._function(tensors)
        if isinstance(value, Mapping):
            names = [port.name for port in self._outputs]
            if set(value) != set(names):
                raise InvalidOutput(f"it gives outputs {sorted(value)}, declared are {names}")
            return [value[name] for name in names]
        return [value] if isinstance(value, self._torch.Tensor) else list(value)

    def _traced(self, inputs: Inputs, out_wrt: int, *in_wrt: int) -> tuple[list[Any], list[Any]]:
        """Return the inputs of one evaluation, and the outputs with their autograd graph."""
        x = [self._tensor(a[None] if self.batched else a) for a in inputs.values()]
        for i in in_wrt:
            if not x[i].is_floating_point():
                raise UnsupportedFeature(
                    f"input {i} ({self._inputs[i].name!r}) of model {self.name!r} is "
                    f"{self._inputs[i].dtype}; derivatives are by floating-point inputs"
                )
            x[i].requires_grad_()
        outputs = self._call(x)
        if not outputs[out_wrt].is_floating_point():
            raise UnsupportedFeature(
                f"output {out_wrt} ({self._outputs[out_wrt].name!r}) of model {self.name!r} is "
                f"{self._outputs[out_wrt].dtype}, which has no derivative"
            )
        return x, outputs

    def _pulled(self, y: Any, x: Any, weights: Any, *, again: bool = False) -> Any:
        """Return the gradient of <y, weights> with respect to x, None if y does not depend on x."""
        if y is None or not y.requires_grad:
            return None
        (found,) = self._torch.autograd.grad(y, x, weights, create_graph=again, allow_unused=True)
        return found

    def _tensor(self, array: Array) -> Any:
        array = np.ascontiguousarray(array)
        if array.dtype.name == BFLOAT16:  # numpy has no bfloat16 of its own: copy the bits
            bits = self._torch.from_numpy(array.view(np.int16))
            return bits.view(self._torch.bfloat16).to(self.device)
        return self._torch.from_numpy(array).to(self.device)

    def _array(self, tensor: Any) -> Array:
        tensor = tensor.detach().cpu()
        if tensor.dtype == self._torch.bfloat16:
            bits: Array = tensor.contiguous().view(self._torch.int16).numpy()
            return bits.view(numpy_dtype(BFLOAT16))
        array: Array = tensor.numpy()
        return array

    def _like(self, vector: Array, tensor: Any) -> Any:
        return self._tensor(vector).to(tensor.dtype).reshape(tensor.shape)

    def _numbers(self, found: Any, like: Any) -> Array:
        shape = tuple(like.shape[1:] if self.batched else like.shape)
        if found is None:
            return np.zeros(shape)
        numbers: Array = found.detach().double().cpu().numpy().reshape(shape)
        return numbers

    def _offered(self) -> frozenset[Operation]:
        """Return the operations, with the derivatives that autograd computes for made-up inputs."""
        arrays = made_up(self._inputs, rows=1)
        if self.batched:
            arrays = [x.reshape(x.shape[1:]) for x in arrays]
        inputs = Inputs(zip(self.inputs, arrays, strict=True))
        return offered(self._outputs, self._inputs, partial(self._gives, inputs))

    def _gives(self, inputs: Inputs, operation: Operation, wrt: tuple[int, ...]) -> bool:
        if not self.warm:
            return True  # without a trial run, the calls will show
        x, outputs = self._traced(inputs, *wrt)
        y = outputs[wrt[0]]
        if not y.requires_grad:
            return False
        vectors = vectors_of(operation, np.ones(y.shape), np.ones(x[wrt[1]].shape))
        try:
            self.differentiate(operation, wrt, inputs, vectors, {})
        except RuntimeError as error:  # an operator without a first or second derivative
            log.info("%s offers no %s: %s", self.name, operation, error)
            return False
        return True


Function = Callable[[list[Any]], Any]
"""The function in a file: from tensors in order to one tensor, or several in order or by name."""


def scripted(torch: Any, path: Path, device: str) -> tuple[Function, str]:
    """Return a TorchScript file's function and dtype. Raises ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch recommends .pt2 instead
            module = torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"torch cannot open {path.name!r} as TorchScript: {_first_line(error)}; a pickle of "
            "torch.save is not served, export it: torch.export.save(torch.export.export(...))"
        ) from error
    module.eval()
    parts = list(module.parameters())
    for parameter in parts:
        parameter.requires_grad_(False)
    floats = [dtype_of(t) for t in [*parts, *module.buffers()] if t.is_floating_point()]
    return (lambda tensors: module(*tensors)), floats[0] if floats else "float64"


def exported(
    torch: Any, path: Path, device: str
) -> tuple[Function, tuple[list[Port], list[Port]], int | None]:
    """Return an exported program's function, its inputs and outputs, and its maximum of rows.

    Raises ValueError.
    """
    from torch.export.passes import move_to_device_pass

    try:
        program = torch.export.load(path)
    except Exception as error:  # zip, JSON and torch's own exceptions
        raise ValueError(f"torch cannot open {path.name!r}: {_first_line(error)}") from error
    program = move_to_device_pass(program, device)
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    inputs = [_port(str(n), nodes.get(n), "input") for n in signature.user_inputs]
    names = _keys(program.call_spec.out_spec, len(signature.user_outputs))
    outputs = [
        _port(name, nodes.get(n), "output")
        for name, n in zip(names, signature.user_outputs, strict=True)
    ]
    module = program.module()
    module.requires_grad_(False)
    spec = program.call_spec

    def function(tensors: list[Any]) -> Any:
        arguments, named = spec.in_spec.unflatten(tensors)
        return spec.out_spec.flatten_up_to(module(*arguments, **named))

    limits = {str(symbol): found.upper for symbol, found in program.range_constraints.items()}
    most: Any = limits.get(str(inputs[0].sizes[0])) if inputs and inputs[0].sizes else None
    bounded = most is not None and most.is_Integer
    return function, (inputs, outputs), int(most) if bounded else None


def _keys(spec: Any, count: int) -> list[str]:
    """Return the names of outputs: a dictionary's keys, else out0, out1 and so on."""
    keys = spec.context if isinstance(spec.context, list) else []
    if spec.type is dict and len(keys) == count and all(isinstance(key, str) for key in keys):
        return list(keys)
    return [f"out{i}" for i in range(count)]


def _port(name: str, node: Any, what: str) -> Port:
    value = None if node is None else node.meta.get("val")
    if value is None or not hasattr(value, "dtype"):
        raise ValueError(f"{what} {name!r} is not a tensor; export the function with tensors only")
    sizes = tuple(n if isinstance(n, int) else str(n) for n in value.shape)
    return Port(name, sizes, dtype_of(value))


def dtype_of(tensor: Any) -> str:
    """Return farm's name of a tensor's type. Raises ValueError for an unsupported type."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"a tensor is {tensor.dtype}; expected one of {', '.join(DTYPES)}")
    return name


def _declared(tensor: TensorInfo, by: Tensors, dtype: str, lead: tuple[str, ...]) -> Port:
    own_type = isinstance(by[tensor.name], TensorInfo)
    sizes = tuple(n if n >= 0 else "" for n in tensor.shape)
    kind = tensor.dtype if own_type else dtype
    return Port(tensor.name, lead + sizes, kind, tensor.unit, tensor.description)


def _named(ports: list[Port], names: Sequence[TensorInfo], what: str) -> list[Port]:
    """Return the file's ports, renamed to the user's names if given."""
    if not names:
        return ports
    if len(names) != len(ports):
        raise ValueError(
            f"the file has {len(ports)} {what}s, named are {[tensor.name for tensor in names]}"
        )
    named = []
    for tensor, port in zip(names, ports, strict=True):
        if tensor.shape not in (port.tensor(batched=b).shape for b in (False, True)):
            raise ValueError(
                f"{what} {tensor.name!r} is declared with shape {tensor.shape}, "
                f"the file says {port.sizes}"
            )
        named.append(Port(tensor.name, port.sizes, port.dtype, tensor.unit, tensor.description))
    return named


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
