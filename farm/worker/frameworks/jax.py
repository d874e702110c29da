"""JAX functions as models: compiled, batched by vmap, with exact derivatives."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from farm.call import Array, Operation, TensorInfo, canonical_config
from farm.declared import Tensors, tensors_of
from farm.errors import InvalidOutput, UnsupportedFeature
from farm.functions import DifferentiableModel, FunctionModel, offered, vectors_of
from farm.model import Config, Inputs
from farm.wording import imported

PROGRAMS_KEPT = 256
"""Maximum number of compiled programs per model: one for each config, row count and index pair."""

WIDE = {"float64", "int64", "uint64"}

log = logging.getLogger(__name__)


def jax_model(
    *,
    inputs: Tensors,
    outputs: Tensors,
    name: str = "",
    max_batch: int = 1,
    repeatable: bool = True,
    copies: bool = True,
    version: str = "",
) -> Callable[[Callable[..., Any]], JaxModel]:
    """Decorator: a function of JAX arrays becomes a model with all derivatives.

        @farm.jax_model(inputs={"x": 2}, outputs={"y": 1}, max_batch=64)
        def forward(x): return jnp.sum(x**2)

    The function computes one evaluation; with max_batch above 1 farm maps it over rows. An argument
    called `config` gets the call's config, and one with a default its entry there. The config is
    constant: farm compiles the function for each one. Numbers are float64 unless a `TensorInfo`
    sets another type, regardless of JAX's settings; constants that the file creates with jax.numpy
    are float32 without `jax.config.update("jax_enable_x64", True)`.
    """

    def decorate(function: Callable[..., Any]) -> JaxModel:
        traits = {
            "name": name or function.__name__,
            "max_batch": max_batch,
            "repeatable": repeatable,
            "copies": copies,
            "version": version,
        }
        return JaxModel(function, inputs, outputs, traits)

    return decorate


class JaxModel(DifferentiableModel, FunctionModel):
    """A model made of one function of JAX arrays, as created by `jax_model`.

    The function is compiled when the model is first described, which workers do before they serve:
    for 1, 2, 4 and so on up to max_batch rows. Other batches are padded with copies of their last
    row.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Tensors,
        outputs: Tensors,
        traits: Mapping[str, Any],
    ) -> None:
        super().__init__(function, inputs, outputs, traits)
        self._inputs, self._outputs = tensors_of(inputs, "input"), tensors_of(outputs, "output")
        types = {tensor.dtype for tensor in (*self._inputs, *self._outputs)}
        if "bytes" in types:
            raise ValueError("JAX has no texts; declare numbers only")
        self._wide = not types.isdisjoint(WIDE)
        self._jax = imported("jax", "JAX functions need jax", "jax", "jax.numpy")
        self._program = lru_cache(PROGRAMS_KEPT)(self._compiled)
        self._warm = False
        self._told: set[str] = set()

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return the inputs and outputs; the first time, also compile the function."""
        if not self._warm:
            self._warm_up(config)
            self._warm = True
        return self.inputs, self.outputs

    def evaluate(self, inputs: Inputs, config: Config, *sequence: Any) -> Any:
        """Return the function's value, for all rows at once."""
        arrays = list(inputs.values())
        if self.max_batch == 1:
            outputs = self._run("evaluate", (), arrays, config)
        else:
            rows = len(arrays[0])
            padded = [_padded(x, _program_rows(rows, self.max_batch)) for x in arrays]
            outputs = [y[:rows] for y in self._run("rows", (), padded, config)]
        return dict(zip(self.outputs, outputs, strict=True))

    def differentiate(
        self,
        operation: Operation,
        wrt: tuple[int, ...],
        inputs: Inputs,
        vectors: Sequence[Array],
        config: Config,
    ) -> Any:
        """Return a derivative, by a program made with `jax.vjp`, `jax.jvp` or both."""
        tensors = [self._outputs[wrt[0]], *(self._inputs[i] for i in wrt[1:])]
        for tensor in tensors:
            if not _floating(tensor):
                raise UnsupportedFeature(
                    f"{tensor.name!r} of model {self.name!r} is {tensor.dtype}; "
                    "derivatives are of floating-point outputs by floating-point inputs"
                )
        likes = vectors_of(operation, tensors[0], tensors[-1])
        cast = [v.astype(like.dtype) for v, like in zip(vectors, likes, strict=True)]
        *outputs, derivative = self._run(operation, wrt, [*inputs.values(), *cast], config)
        if operation is Operation.VALUE_AND_GRADIENT:
            return dict(zip(self.outputs, outputs, strict=True)), derivative
        return derivative

    def _run(
        self, what: str, wrt: tuple[int, ...], arrays: Sequence[Array], config: Config
    ) -> list[Array]:
        shapes = tuple((x.shape, str(x.dtype)) for x in arrays)
        with self._precision():
            program = self._program(what, wrt, shapes, canonical_config(config))
            return [np.asarray(y) for y in program(*arrays)]

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """Enable 64-bit numbers in JAX if the model has them, for this thread and block."""
        wide: contextlib.AbstractContextManager[Any]
        wide = self._jax.enable_x64(True) if self._wide else contextlib.nullcontext()
        return wide

    def _compiled(self, what: str, wrt: tuple[int, ...], shapes: Shapes, config: str) -> Any:
        function = self._traceable(what, wrt, json.loads(config))
        return self._jax.jit(function).lower(*self._abstract(shapes)).compile()

    def _abstract(self, shapes: Shapes) -> list[Any]:
        return [self._jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]

    def _traceable(self, what: str, wrt: tuple[int, ...], config: Config) -> Callable[..., Any]:
        """Return the operation as a function of JAX arrays that returns a list of them."""
        function = partial(self._values, config)
        if what == "evaluate":
            return function
        if what == "rows":
            batched: Callable[..., Any] = self._jax.vmap(function)
            return batched
        if what == Operation.VALUE_AND_GRADIENT:
            return lambda *arrays: self._valued_and_pulled(function, *wrt, *arrays)
        derivative: Any = {
            Operation.GRADIENT: self._pulled,
            Operation.APPLY_JACOBIAN: self._pushed,
            Operation.APPLY_HESSIAN: self._bent,
        }[Operation(what)]
        return lambda *arrays: [derivative(function, *wrt, *arrays)]

    def _values(self, config: Config, *arrays: Any) -> list[Any]:
        """Return the outputs of one evaluation in order, in their declared shapes."""
        inputs = Inputs(zip(self.inputs, arrays, strict=True))
        value = super().evaluate(inputs, config)
        names = list(self.outputs)
        if isinstance(value, Mapping):
            if set(value) != set(names):
                raise InvalidOutput(
                    f"model {self.name!r} returned outputs {sorted(value)}, declares {names}"
                )
            value = [value[name] for name in names]
        elif len(names) == 1 and not _holds_one_array(value):
            value = [value]
        if len(value) != len(names):
            raise InvalidOutput(
                f"model {self.name!r} returned {len(value)} outputs, declares {len(names)}: {names}"
            )
        return [self._shaped(y, tensor) for y, tensor in zip(value, self._outputs, strict=True)]

    def _shaped(self, value: Any, tensor: TensorInfo) -> Any:
        array = self._jax.numpy.asarray(value)
        what = f"output {tensor.name!r} of model {self.name!r}"
        if array.dtype != tensor.dtype:
            if not self._jax.numpy.can_cast(array.dtype, tensor.dtype, casting="same_kind"):
                raise InvalidOutput(f"{what} is {array.dtype}, declared is {tensor.dtype}")
            narrow = array.dtype.itemsize < np.dtype(tensor.dtype).itemsize
            if narrow and _floating(tensor) and what not in self._told:
                self._told.add(what)  # warn once, even if the function is traced again
                log.warning("%s is computed as %s, not %s", what, array.dtype, tensor.dtype)
            array = array.astype(tensor.dtype)
        if array.shape == tensor.shape or -1 in tensor.shape:
            return array
        if array.ndim <= 1 and array.size == tensor.size:
            return array.reshape(tensor.shape)
        raise InvalidOutput(f"{what} has shape {array.shape}, expected {tensor.shape}")

    def _pulled(self, f: Any, out_wrt: int, in_wrt: int, *arrays: Any) -> Any:
        """Return J^T sens; arrays: the inputs and sens."""
        *inputs, sens = arrays
        _, pull = self._jax.vjp(_of_one(f, out_wrt, in_wrt, inputs), inputs[in_wrt])
        return pull(sens)[0]

    def _valued_and_pulled(self, f: Any, out_wrt: int, in_wrt: int, *arrays: Any) -> list[Any]:
        """Return the outputs, and last J^T sens; arrays: the inputs and sens."""
        *inputs, sens = arrays

        def one_and_all(x: Any) -> tuple[Any, list[Any]]:
            outputs = f(*_replaced(inputs, in_wrt, x))
            return outputs[out_wrt], outputs

        _, pull, outputs = self._jax.vjp(one_and_all, inputs[in_wrt], has_aux=True)
        return [*outputs, pull(sens)[0]]

    def _pushed(self, f: Any, out_wrt: int, in_wrt: int, *arrays: Any) -> Any:
        """Return J vec; arrays: the inputs and vec."""
        *inputs, vec = arrays
        return self._jax.jvp(
            _of_one(f, out_wrt, in_wrt, inputs), inputs[in_wrt : in_wrt + 1], [vec]
        )[1]

    def _bent(self, f: Any, out_wrt: int, in_wrt1: int, in_wrt2: int, *arrays: Any) -> Any:
        """Return the derivative of J^T sens along vec; arrays: the inputs, sens and vec."""
        *inputs, sens, vec = arrays

        def pulled(x: Any) -> Any:
            return self._pulled(f, out_wrt, in_wrt1, *_replaced(inputs, in_wrt2, x), sens)

        return self._jax.jvp(pulled, inputs[in_wrt2 : in_wrt2 + 1], [vec])[1]

    def _warm_up(self, config: Config) -> None:
        """Compile for all numbers of rows, and determine the available derivatives."""
        if any(-1 in tensor.shape for tensor in self._inputs):
            return  # each size needs its own program, compiled when first used
        single = tuple((tensor.shape, tensor.dtype) for tensor in self._inputs)
        text = canonical_config(config)
        try:
            with self._precision():
                self._check_constants(single, config)
                if self.max_batch == 1:
                    self._program("evaluate", (), single, text)
                most = self.max_batch
                sizes = {_program_rows(n, most) for n in range(1, most + 1)} if most > 1 else ()
                for rows in sorted(sizes):
                    shapes = tuple(((rows, *shape), dtype) for shape, dtype in single)
                    self._program("rows", (), shapes, text)
                gives = partial(self._gives, single, config)
                self.operations = offered(self._outputs, self._inputs, gives)
        except Exception as error:
            if self.config_keys is not None:
                raise
            # It may need config values that only calls have.
            log.warning("%s is not compiled for an empty config: %s", self.name, error)

    def _check_constants(self, shapes: Shapes, config: Config) -> None:
        traced = self._jax.make_jaxpr(partial(self._values, config))(*self._abstract(shapes))
        narrow = [c for c in traced.consts if getattr(c, "dtype", None) == np.float32]
        if narrow and any(tensor.dtype == "float64" for tensor in self._inputs):
            log.warning(
                "%s is float64 with %d constants of float32; make them with numpy, or after "
                'jax.config.update("jax_enable_x64", True)',
                self.name,
                len(narrow),
            )

    def _gives(
        self, shapes: Shapes, config: Config, operation: Operation, wrt: tuple[int, ...]
    ) -> bool:
        like = self._outputs[wrt[0]]
        vectors = vectors_of(operation, (like.shape, like.dtype), shapes[wrt[1]])
        try:
            self._jax.eval_shape(
                self._traceable(operation, wrt, config), *self._abstract((*shapes, *vectors))
            )
        except Exception as error:  # such as a loop of unknown length, which has no reverse mode
            log.info("%s offers no %s: %s", self.name, operation, error)
            return False
        return True


Shapes = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and type of each array of a program."""


def _of_one(f: Any, out_wrt: int, in_wrt: int, inputs: Sequence[Any]) -> Callable[[Any], Any]:
    """Return one output as a function of one input."""
    return lambda x: f(*_replaced(inputs, in_wrt, x))[out_wrt]


def _replaced(inputs: Sequence[Any], position: int, value: Any) -> list[Any]:
    return [*inputs[:position], value, *inputs[position + 1 :]]


def _holds_one_array(value: Any) -> bool:
    """Whether the value is a list with the one output, not the output as a list of numbers."""
    return isinstance(value, list | tuple) and len(value) == 1 and getattr(value[0], "ndim", 0) > 0


def _floating(tensor: TensorInfo) -> bool:
    return "float" in tensor.dtype


def _program_rows(rows: int, max_batch: int) -> int:
    """Return the rows of the program for `rows` rows: the next power of two, or max_batch."""
    return min(1 << max(rows - 1, 0).bit_length(), max_batch)


def _padded(array: Array, rows: int) -> Array:
    """Return the array padded to `rows` rows with copies of its last row."""
    missing = rows - len(array)
    return array if missing <= 0 else np.concatenate([array, np.repeat(array[-1:], missing, 0)])
