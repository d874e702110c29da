"""Served models as functions of JAX, PyTorch and PyTensor, with derivatives.

Each function here turns a `RemoteModel` into an op of one framework; docs/ops.md describes what the
ops have in common. `evaluation.py` answers queries (`query.py`), `asking.py` puts them to the
model, `repeats.py` remembers the answers, `rules.py` has the rules of differentiation, and one
module for each framework applies them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from farm.client import RemoteModel
from farm.ops.asking import Counts
from farm.ops.evaluation import Evaluation

if TYPE_CHECKING:
    from farm.ops.jax import JaxOp
    from farm.ops.pytensor import PytensorOp
    from farm.ops.torch import TorchOp

Names = int | str | Sequence[int | str]
"""Inputs or outputs, by name or by position from 0: one, or several."""


def jax_op(
    model: RemoteModel,
    config: Mapping[str, Any] | None = None,
    out: Names = 0,
    wrt: Names | None = None,
) -> JaxOp:
    """Return the model as a function of JAX arrays, for jit, vmap, grad, jvp and hessian.

        f = farm.ops.jax_op(client.model())
        value, gradient = jax.value_and_grad(f)(x)

    The arguments are the model's inputs in order; their leading axes are points. out: the output to
    return, or several for a tuple of them; an output of one entry is a scalar. wrt: the inputs with
    derivatives, by default all of floating-point numbers; other inputs are constants.

    Raises ImportError without JAX, and FarmError if the model does not fit.
    """
    bridge = _bridge("jax", "jax")
    op: JaxOp = bridge.JaxOp(Evaluation(model, config, out, wrt))
    return op


def torch_op(
    model: RemoteModel,
    config: Mapping[str, Any] | None = None,
    out: Names = 0,
    wrt: Names | None = None,
) -> TorchOp:
    """Return the model as a function of torch tensors, for autograd and torch.func.

    Arguments and errors are those of `jax_op`.
    """
    bridge = _bridge("torch", "torch")
    op: TorchOp = bridge.TorchOp(Evaluation(model, config, out, wrt))
    return op


def pytensor_op(
    model: RemoteModel,
    config: Mapping[str, Any] | None = None,
    out: Names = 0,
    wrt: Names | None = None,
) -> PytensorOp:
    """Return the model as a function of PyTensor variables, as in PyMC models.

    Arguments and errors are those of `jax_op`.
    """
    bridge = _bridge("pytensor", "pytensor")
    op: PytensorOp = bridge.PytensorOp(Evaluation(model, config, out, wrt))
    return op


def _bridge(name: str, extra: str) -> ModuleType:
    """Import the module of a framework. Raises ImportError, which names the extra."""
    try:
        return importlib.import_module(f"farm.ops.{name}")
    except ImportError as error:
        raise ImportError(
            f'farm.ops.{name}_op needs {name}: pip install "modelfarm[{extra}]" ({error})'
        ) from error


__all__ = ["Counts", "Evaluation", "jax_op", "pytensor_op", "torch_op"]
