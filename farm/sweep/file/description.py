"""The description of a sweep's points in its file: facts, bounds and words."""

from __future__ import annotations

import json

import h5py
import numpy as np

from farm.call import Array
from farm.sweep.design.plan import Plan
from farm.sweep.file.text_tables import create_texts, storable
from farm.sweep.space.category import Category

MOST_BOUNDS = 4000
"""Most parameters whose bounds are attributes, which HDF5 limits to 64 KiB.

For more parameters only /provenance has the bounds."""

TEXT = h5py.string_dtype("utf-8")


def facts_of(plan: Plan) -> dict[str, str]:
    """Return the attributes of /provenance."""
    facts = {
        **plan.provenance,
        "model": plan.info.name,
        "model_info": json.dumps(plan.info.to_json()),
        "config": json.dumps(dict(plan.config)),
        "design": str(plan.design),
        "seed": str(plan.seed),
        **_space_facts(plan),
        "theta_sha256": plan.theta_hash,
        "plan": json.dumps(plan.to_json()),
    }
    return {name: storable(text) for name, text in facts.items()}


def _space_facts(plan: Plan) -> dict[str, str]:
    """Return the facts about the space of the points and about their designs, if there are any."""
    facts = {
        "correlations": "; ".join(map(str, plan.correlations)),
        "conditions": "; ".join(f"{name}: {text}" for name, text in plan.when),
        "constraints": "; ".join(plan.where),
    }
    if plan.parts:
        ends = np.cumsum([part.size for part in plan.parts]).tolist()
        facts["designs"] = json.dumps(
            [
                {
                    "design": str(part.design),
                    "seed": part.seed,
                    "first_point": end - part.size,
                    "points": part.size,
                }
                for part, end in zip(plan.parts, ends, strict=True)
            ]
        )
    return {name: text for name, text in facts.items() if text}


def describe_theta(theta: h5py.Dataset, plan: Plan) -> None:
    """Write bounds and scales of the parameters as attributes of /theta."""
    columns = zip(plan.parameters, plan.theta.T, strict=True)
    bounds = [p.spread.bounds if p.spread is not None else _range_of(c) for p, c in columns]
    theta.attrs["long_name"] = "parameters of the points"
    if len(bounds) <= MOST_BOUNDS:
        theta.attrs["lower"] = [low for low, _ in bounds]
        theta.attrs["upper"] = [high for _, high in bounds]
        scales = ["table" if p.spread is None else p.spread.scale for p in plan.parameters]
        theta.attrs["scale"] = np.array(scales, dtype=TEXT)
    if "unit" in theta.parent:
        theta.parent["unit"].attrs["long_name"] = "positions of the points in the unit cube"


def _range_of(column: Array) -> tuple[float, float]:
    """Return the smallest and the largest number of a column; NaN if it has none."""
    there = column[~np.isnan(column)]
    return (float(np.min(there)), float(np.max(there))) if len(there) else (np.nan, np.nan)


def write_words(file: h5py.File, plan: Plan) -> None:
    """Write the words of each parameter that has words: theta has the index of one."""
    for j, parameter in enumerate(plan.parameters):
        if not isinstance(parameter.spread, Category):
            continue
        name, words = f"param_{j}", parameter.spread.words
        group = file.require_group("words")
        if name in group:
            if len(group[name]) == len(words):
                continue
            del group[name]  # a table brought more
        data = create_texts(group, name, words)
        data.attrs["long_name"] = f"words of {parameter.name}"
        data.make_scale(name)
