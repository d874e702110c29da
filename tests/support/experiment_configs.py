"""Configurations of experiments that evaluate a model at the points of a design."""

from __future__ import annotations


def sobol_config(model: str, points: int, names: tuple[str, ...] = ("x",), more: str = "") -> str:
    """Return a configuration of `points` points in [0, 1] for each name.

    more: lines of the section [farm].
    """
    count = len(names)
    return f"""[common]
parnames = [{", ".join(names)}]
outcome_types = [continuous]
strategy_names = [sobol]
lb = [{", ".join(["0"] * count)}]
ub = [{", ".join(["1"] * count)}]
[sobol]
generator = SobolGenerator
min_asks = {points}
[farm]
model = {model}
{more}"""
