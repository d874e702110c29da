"""Imports the libraries of the extra, and provides the settings that make them deterministic."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

with warnings.catch_warnings():
    # linear_operator, under gpytorch, decorates with torch.jit.script, which torch deprecates.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    import botorch
    import gpytorch
    import torch
    from botorch.exceptions.warnings import BotorchWarning
    from gpytorch.utils.warnings import NumericalWarning

__all__ = ["alone", "botorch", "gpytorch", "import_the_rest"]


def import_the_rest() -> None:
    """Import what is imported at its first use, sympy above all; takes seconds.

    It computes nothing, so that the process may be forked afterwards.
    """
    import scipy.linalg
    import scipy.optimize  # noqa: F401  # `exact.py` uses both

    torch.broadcast_shapes((1,), (1,))  # as the constructor of every kernel does


@cache
def _libraries() -> ThreadpoolController:
    """Return the loaded libraries of linear algebra; finding them takes milliseconds."""
    import scipy.linalg  # noqa: F401  # it comes with a copy of OpenBLAS that is loaded now

    return ThreadpoolController()


_limited = ContextVar("_limited", default=False)
"""Whether this thread is in `alone`."""


@contextmanager
def alone(seed: int) -> Iterator[None]:
    """Run on one thread, for a fixed order of sums, and draw all random numbers from the seed.

    Linear algebra is exact at every size. Warnings about trials that repeat, lie outside the bounds
    or are all equal are suppressed: users report such trials.
    """
    threads, state = torch.get_num_threads(), np.random.get_state()
    torch.set_num_threads(1)
    limits = nullcontext() if _limited.get() else _libraries().limit(limits=1)
    limited = _limited.set(True)
    np.random.seed(seed % 2**32)  # PairwiseGP starts from random values
    exact = gpytorch.settings.fast_computations(False, False, False)
    numbers, quiet = botorch.manual_seed(seed % 2**31), warnings.catch_warnings()
    try:
        with limits, numbers, exact, quiet:
            for category in (BotorchWarning, NumericalWarning):
                warnings.simplefilter("ignore", category)
            # A search that stops early has found a usable point by then.
            warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
            yield
    finally:
        _limited.reset(limited)
        np.random.set_state(state)
        torch.set_num_threads(threads)
