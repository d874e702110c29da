"""Served models as functions of JAX, PyTorch and PyTensor, with derivatives.

Each function here turns a `RemoteModel` into an op of one framework; docs/ops.md describes what the
ops have in common. `evaluation.py` answers queries, `asking.py` puts them to the model and
remembers the answers, `rules.py` has the rules of differentiation, and one module for each
framework applies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.client import RemoteModel
from farm.ops.asking import Counts
from farm.ops.evaluation import Evaluation, ServedOp
from farm.wording import needs

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
    with needs("jax", "farm.ops.jax_op needs jax"):
        from farm.ops.jax import JaxOp
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
    with needs("torch", "farm.ops.torch_op needs torch"):
        from farm.ops.torch import TorchOp
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
    with needs("pytensor", "farm.ops.pytensor_op needs pytensor"):
        from farm.ops.pytensor import PytensorOp
    return PytensorOp(Evaluation(model, config, out, wrt))


__all__ = ["Counts", "ServedOp", "jax_op", "pytensor_op", "torch_op"]
