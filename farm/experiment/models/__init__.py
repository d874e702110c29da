"""Strategies that learn: surrogates fitted to the trials, and the points that they find best.

`proposals.py` makes points and `answers.py` answers questions; both ask `surrogate.py` for what is
known, a model of BoTorch's, and `search.py` for the best point by one of `criteria.py`. Only this
folder imports torch, gpytorch and botorch, the extra `experiments`.
"""

from farm.experiment.models import libraries  # first: others import what it brings in

# isort: split
from farm.experiment.models.answers import answer, predict
from farm.experiment.models.proposals import generate, post_range

__all__ = ["answer", "generate", "libraries", "post_range", "predict"]
