"""Served models as functions of JAX arrays.

A query is a JAX primitive of its own: its leading axes are points, so its batching rule only adds
one more, and its derivatives are queries again. Outside of jit it runs as plain Python.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from farm.call import Array
from farm.errors import FarmError
from farm.ops.evaluation import Evaluation, OpQuery, OpQueryKind, ServedOp
from farm.ops.rules import DerivativeRules


class JaxOp(ServedOp):
    """A served model as a function of JAX arrays, made by `farm.ops.jax_op`."""

    def _array(self, x: Any) -> Any:
        return jnp.asarray(x)

    def _type(self, floats: list[Any], arrays: list[Any]) -> Any:
        _warn_if_narrow()
        return jnp.result_type(*floats) if floats else _widest()

    def _value(self, dtype: Any, inputs: list[Any]) -> list[Any]:
        return _apply(self.evaluation, dtype, OpQuery(OpQueryKind.VALUE), inputs)


def _widest() -> Any:
    """Return the type that JAX uses for floating-point numbers now."""
    return jnp.zeros(()).dtype


_told = False


def _warn_if_narrow() -> None:
    global _told
    if not _told and _widest() != np.float64:
        _told = True
        warnings.warn(
            "JAX rounds the model's results to float32; for float64, begin the program with "
            'jax.config.update("jax_enable_x64", True)',
            stacklevel=4,
        )


def _apply(
    evaluation: Evaluation, dtype: Any, query: OpQuery, operands: Sequence[Any]
) -> list[Any]:
    """Ask a query whose operands may have different leading axes."""
    inputs = len(evaluation.inputs)
    arrays = [
        jnp.asarray(x) if n < inputs else jnp.asarray(x, dtype) for n, x in enumerate(operands)
    ]
    full = evaluation.aligned(query, arrays, jnp)
    found: list[Any] = query_p.bind(*full, evaluation=evaluation, query=query, dtype=dtype)
    return found


query_p = Primitive("farm_query")
query_p.multiple_results = True


def _run(*operands: Any, evaluation: Evaluation, query: OpQuery, dtype: Any) -> list[Any]:
    """Ask the model directly: operands are arrays, not traced, so errors do not pass XLA."""
    return [jnp.asarray(y) for y in _answers(evaluation, query, dtype, *operands)]


def _answers(evaluation: Evaluation, query: OpQuery, dtype: Any, *operands: Any) -> list[Array]:
    found = evaluation.run(query, [np.asarray(x) for x in operands])
    return [y.astype(dtype) for y in found]


query_p.def_impl(_run)

(_EFFECT,) = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects
"""The effect of a debugging callback, which all of JAX's transformations allow. A compiled program
with an effect is not called by JAX's fastest path, in which all errors become ValueErrors."""


def _abstract(
    *operands: Any, evaluation: Evaluation, query: OpQuery, dtype: Any
) -> tuple[list[Any], set[Any]]:
    core = evaluation.operands(query)[0]
    lead = operands[0].shape[: len(operands[0].shape) - len(core)]
    shapes = evaluation.answers(query)
    return [jax.core.ShapedArray((*lead, *shape), dtype) for shape in shapes], {_EFFECT}


query_p.def_effectful_abstract_eval(_abstract)


def _lowered(ctx: Any, *operands: Any, evaluation: Evaluation, query: OpQuery, dtype: Any) -> Any:
    """Compile to a call of Python, which gets numpy arrays."""

    def callback(*arrays: Array) -> tuple[Array, ...]:
        try:
            return tuple(_answers(evaluation, query, dtype, *arrays))
        except FarmError as error:
            raise _errors.carried(error) from error

    evaluation.check_offered(query)
    _errors.install()
    found, _, _ = mlir.emit_python_callback(
        ctx, callback, None, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=False
    )
    return found


mlir.register_lowering(query_p, _lowered, cacheable=False)


def _rules(evaluation: Evaluation, dtype: Any) -> DerivativeRules:
    return DerivativeRules(evaluation, partial(_apply, evaluation, dtype))


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    evaluation: Evaluation,
    query: OpQuery,
    dtype: Any,
) -> tuple[list[Any], list[Any]]:
    given = [None if isinstance(t, ad.Zero) else t for t in tangents]
    answers, moved = _rules(evaluation, dtype).forward(query, primals, given)
    return answers, [
        ad.Zero(jax.typeof(y)) if t is None else t for y, t in zip(answers, moved, strict=True)
    ]


ad.primitive_jvps[query_p] = _jvp


def _transposed(
    cotangents: Sequence[Any], *operands: Any, evaluation: Evaluation, query: OpQuery, dtype: Any
) -> list[Any]:
    given = [None if isinstance(ct, ad.Zero) else ct for ct in cotangents]
    linear = [ad.is_undefined_primal(x) for x in operands]
    found = _rules(evaluation, dtype).reverse(query, operands, (), given, linear)
    return [
        ad.Zero(x.aval) if undefined and ct is None else ct
        for x, undefined, ct in zip(operands, linear, found, strict=True)
    ]


ad.primitive_transposes[query_p] = _transposed


def _batched(operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
    """Add the batch axis to the points."""
    (size,) = {x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None}
    front = [batching.bdim_at_front(x, a, size) for x, a in zip(operands, axes, strict=True)]
    found = query_p.bind(*front, **params)
    return found, [0] * len(found)


batching.primitive_batchers[query_p] = _batched


class _Errors:
    """Recovers FarmErrors from compiled programs, where XLA turns exceptions into text.

    An error goes in with a mark in its text. `JaxRuntimeError`, which JAX makes of the text, then
    finds the mark when it is made, and raises the error in its own place: so callers see the
    FarmError itself, in the thread that waits for the program, whenever that is.
    """

    KEPT = 64

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._errors: OrderedDict[str, FarmError] = OrderedDict()
        self._installed = False

    def carried(self, error: FarmError) -> Exception:
        """Return an exception whose text leads back to `error`."""
        mark = f"<farm error {os.getpid()}.{next(self._numbers)}>"
        self._errors[mark] = error
        while len(self._errors) > self.KEPT:
            self._errors.popitem(last=False)
        return RuntimeError(f"{mark} {type(error).__name__}: {error}")

    def install(self) -> None:
        """Have `JaxRuntimeError` look for marks."""
        if self._installed:
            return
        self._installed = True
        made = jax.errors.JaxRuntimeError.__init__

        def __init__(this: Any, *arguments: Any) -> None:
            text = str(arguments[0]) if arguments else ""
            if "<farm error " in text:
                mark = "<farm error " + text.rpartition("<farm error ")[2].partition(">")[0] + ">"
                if mark in self._errors:
                    raise self._errors[mark].with_traceback(None)
            made(this, *arguments)

        jax.errors.JaxRuntimeError.__init__ = __init__


_errors = _Errors()
