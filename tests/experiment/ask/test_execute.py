"""Work runs here or in the models of the extra; without the extra, the error is one line."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farm.errors import InvalidInput, Unavailable
from farm.experiment.ask.execute import can_execute, execute, outcome
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.space import Space
from farm.experiment.work import Data, Generate, Generated, Query, QueryKind
from tests.support.time_limits import scaled

MODEL_FREE = """
[common]
parnames = [x]
lb = 0
ub = 1
outcome_types = [continuous]
strategy_names = [s]
[s]
generator = SobolGenerator
"""
WITH_A_MODEL = MODEL_FREE.replace(
    "generator = SobolGenerator",
    "generator = OptimizeAcqfGenerator\nmodel = GPRegressionModel\nacqf = qUpperConfidenceBound",
)
WITHOUT_THE_EXTRA = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in ("torch", "botorch", "gpytorch"):
            return super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


def generate(config: Config, *, filler: bool = False) -> Generate:
    nothing = Space.of(config).empty()
    return Generate(config, 0, 3, 0, Data(nothing, np.empty((0, 1)), 0), nothing, filler=filler)


def test_points_without_a_model_and_points_that_fill_in() -> None:
    can_execute(read_config(MODEL_FREE))
    for text, filler in ((MODEL_FREE, False), (WITH_A_MODEL, True)):
        made = execute(generate(read_config(text), filler=filler))
        assert isinstance(made, Generated)
        assert made.points.shape == (3, 1, 1)


def test_a_query_needs_a_model() -> None:
    config = read_config(MODEL_FREE)
    data = generate(config).data
    query = Query(config, 0, QueryKind.MAX, data)
    with pytest.raises(InvalidInput, match="strategy 's' has no model to answer a query") as caught:
        execute(query)
    crossed = pickle.loads(pickle.dumps(outcome(query)))
    assert (type(crossed), str(crossed)) == (InvalidInput, str(caught.value))


class Fails(Exception):
    """An exception that a library raises."""


@pytest.mark.parametrize("error", [Fails("a matrix\nis not positive"), MemoryError()])
def test_whatever_is_raised_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(work: Generate) -> Generated:
        raise error

    monkeypatch.setattr("farm.experiment.ask.execute.execute", fail)
    came = outcome(generate(read_config(MODEL_FREE)))
    assert isinstance(came, Unavailable)
    assert "\n" not in came.message
    if isinstance(error, Fails):
        assert came.message.endswith("Fails: a matrix is not positive")
        assert "fail" in came.detail


PRELUDE = f"""
import sys
import numpy as np
from farm.errors import FarmError
from farm.experiment.config.definition import Config
from farm.experiment.config.reader import read_config
from farm.experiment.ask.execute import can_execute, execute, predict
from farm.experiment.space import Space
from farm.experiment.work import Data, Generate
MODEL_FREE, WITH_A_MODEL = {MODEL_FREE!r}, {WITH_A_MODEL!r}
{inspect.getsource(generate)}
"""


def run(program: str) -> str:
    """Return the output of a program run in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_extra_one_line_names_it_and_a_check_imports_no_library() -> None:
    printed = run(
        f"""
try:
    can_execute(read_config(WITH_A_MODEL))
except FarmError:
    pass
execute(generate(read_config(MODEL_FREE)))
print([name for name in ("torch", "botorch", "gpytorch") if name in sys.modules])
{WITHOUT_THE_EXTRA}
can_execute(read_config(MODEL_FREE))
execute(generate(read_config(WITH_A_MODEL), filler=True))
def predicted(config):
    return predict(config, 0, generate(config).data, None)
for check in (can_execute, lambda config: execute(generate(config)), predicted):
    try:
        check(read_config(WITH_A_MODEL))
    except FarmError as error:
        print(type(error).__name__, error)
"""
    )
    loaded, *lines = printed.splitlines()
    assert loaded == "[]"
    assert len(lines) == 3
    assert lines[2] == lines[1]
    assert lines[0].startswith(
        "UnsupportedFeature [s] model = GPRegressionModel needs the package torch"
    )
    assert lines[1].startswith("UnsupportedFeature strategy 's' uses a model, which needs BoTorch")
    assert all(line.endswith('pip install "modelfarm[experiments]"') for line in lines)


LOADED = """
import sys
from farm.experiment.ask.execute import execute, load

load()
before = set(sys.modules)
from tests.experiment.models.configs import REGRESSION, ask, branin, config, data, spread

known = config(REGRESSION)
x = spread(known, 8)
helpers = set(sys.modules)
execute(ask(known, data(x, branin(x))))
print(sorted(set(sys.modules) - helpers))
"""


@pytest.mark.slow
def test_an_ask_imports_nothing_once_all_is_loaded() -> None:
    """Forked processes would each import it again, sympy alone for seconds."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout == "[]\n"
