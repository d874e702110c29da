"""Brings in the libraries of the extra, without the warnings that they cause in one another."""

import warnings

with warnings.catch_warnings():
    # linear_operator, under gpytorch, decorates with torch.jit.script, which torch deprecates.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    import botorch
    import gpytorch

__all__ = ["botorch", "gpytorch"]
