"""Served models as functions of JAX, PyTorch and PyTensor, with derivatives.

Each function here turns a `RemoteModel` into an op of one framework; docs/ops.md describes what the
ops have in common. `evaluation.py` answers queries (`query.py`), `asking.py` puts them to the
model, `repeats.py` remembers the answers, `rules.py` has the rules of differentiation, and one
module for each framework applies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.client import RemoteModel
from farm.ops.asking import Counts
from farm.ops.evaluation import Evaluation
from farm.ops.served import ServedOp

Names = int | str | Sequence[int | str]
"""Inputs or outputs, by name or by position from 0: one, or several."""


def jax_op(
    model: RemoteModel,
    config: Mapping[str, Any] | None = None,
    out: Names = 0,
    wrt: Names | None = None,
) -> ServedOp:
    """Return the model as a function of JAX arrays, for jit, vmap, grad, jvp and hessian.

        f = farm.ops.jax_op(client.model())
        value, gradient = jax.value_and_grad(f)(x)

    The arguments are the model's inputs in order; their leading axes are points. out: the output to
    return, or several for a tuple of them; an output of one entry is a scalar. wrt: the inputs with
    derivatives, by default all of floating-point numbers; other inputs are constants.

    Raises ImportError without JAX, and FarmError if the model does not fit.
    """
    try:
        from farm.ops.jax import JaxOp
    except ImportError as error:
        raise _missing("jax", error) from error
    return JaxOp(Evaluation(model, config, out, wrt))


def torch_op(
    model: RemoteModel,
    config: Mapping[str, Any] | None = None,
    out: Names = 0,
    wrt: Names | None = None,
) -> ServedOp:
    """Return the model as a function of torch tensors, for autograd and torch.func.

    Arguments and errors are those of `jax_op`.
    """
    try:
        from farm.ops.torch import TorchOp
    except ImportError as error:
        raise _missing("torch", error) from error
    return TorchOp(Evaluation(model, config, out, wrt))


def pytensor_op(
    model: RemoteModel,
    config: Mapping[str, Any] | None = None,
    out: Names = 0,
    wrt: Names | None = None,
) -> ServedOp:
    """Return the model as a function of PyTensor variables, as in PyMC models.

    Arguments and errors are those of `jax_op`.
    """
    try:
        from farm.ops.pytensor import PytensorOp
    except ImportError as error:
        raise _missing("pytensor", error) from error
    return PytensorOp(Evaluation(model, config, out, wrt))


def _missing(library: str, error: ImportError) -> ImportError:
    return ImportError(
        f'farm.ops.{library}_op needs {library}: pip install "modelfarm[{library}]" ({error})'
    )


__all__ = ["Counts", "ServedOp", "jax_op", "pytensor_op", "torch_op"]
