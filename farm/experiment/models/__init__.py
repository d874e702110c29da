"""Strategies with a surrogate: models fitted to the trials, and the best points by those models.

`experiment/ask/execute.py` uses the functions below: `proposals.py` generates points, `answers.py`
answers queries. Both use the surrogate in `surrogate.py`, a BoTorch model, and `search.py`, which
finds the best point by one of the criteria in `criteria.py`. Only this folder imports torch,
gpytorch and botorch, the extra `experiments`.
"""

from farm.experiment.models import libraries  # first: configures what the other modules import

# isort: split
from farm.experiment.models.answers import answer, predict
from farm.experiment.models.proposals import generate, post_range

__all__ = ["answer", "generate", "libraries", "post_range", "predict"]
