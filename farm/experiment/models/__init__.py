"""Strategies with a surrogate: models fitted to the trials, and the best points by those models.

`experiment/ask/execute.py` uses the functions below. `proposals.py` generates points and answers
queries, by the surrogate in `surrogate.py`, a BoTorch model, and by `search.py`, which finds the
best point by one of the criteria in `criteria.py`. Only this folder imports torch, gpytorch and
botorch, the extra `experiments`.
"""

from farm.experiment.models import libraries  # first: configures what the other modules import

# isort: split
from farm.experiment.models.proposals import answer, generate, post_range, predict

__all__ = ["answer", "generate", "libraries", "post_range", "predict"]
