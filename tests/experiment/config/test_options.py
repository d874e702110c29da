"""The rows of the option tables, and the tables of the documentation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from farm.experiment.config import options
from farm.experiment.config.components import ACQUISITIONS, GENERATORS, OBJECTIVES, SURROGATES
from farm.experiment.config.definition import MODEL_FREE, Metadata, Strategy
from farm.experiment.config.ini import Section
from farm.experiment.config.option_table import KINDS, REQUIRED
from tests.support.option_tables import MARKED, PAGES, TABLES, rows_of, with_tables


def test_the_documentation_shows_the_tables() -> None:
    """`python -m tests.support.option_tables` updates the pages."""
    page = "\n".join(path.read_text() for path in PAGES)
    assert {found[2] for found in MARKED.finditer(page)} == set(TABLES)
    assert with_tables(page) == page
    for row in (row for found in MARKED.finditer(page) for row in rows_of(found[3])):
        assert row["meaning"]
        assert row.get("AEPsych", "0.8") in ("before 0.8", "0.8", "after 0.8", "farm")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_names_of_a_table_differ_and_are_in_lower_case(table: Any) -> None:
    names = [name for o in table.options for name in (o.name, o.older) if name]
    assert len(set(names)) == len(names)
    assert names == [name.lower() for name in names]


def test_kinds_and_classes_are_known_and_defaults_are_of_their_kind() -> None:
    """Writing a default explicitly has the same meaning; words describe a computed one."""
    known = (*GENERATORS.known, *SURROGATES.known, *ACQUISITIONS.known, *OBJECTIVES.known)
    for option in (option for table in TABLES.values() for option in table.options):
        assert option.kind in KINDS, option
        assert set(filter(None, option.classes.split(", "))) <= set(known), option
        if option.fallback not in ("none", REQUIRED) and " " not in option.fallback:
            assert option.parse(option.fallback) == option.default is not None, option
        else:
            assert option.default is None, option


def test_a_seed_is_taken_by_the_generators_without_a_model() -> None:
    assert set(options.GENERATOR.option("seed").classes.split(", ")) == MODEL_FREE


def test_strategies_without_options_have_the_defaults_of_the_table() -> None:
    read = options.STRATEGY.read_all(Section("s", {}, {"generator": "SobolGenerator"}))
    for field in dataclasses.fields(Strategy):
        if field.name in read and field.name not in ("generator", "min_total_outcome_occurrences"):
            assert read[field.name] == field.default
    assert options.METADATA.read_all(Section("metadata")).keys() <= {
        field.name for field in dataclasses.fields(Metadata)
    }


def test_options_of_a_generator_are_those_of_its_class() -> None:
    section = Section("g", {}, {"points": "[[1, 2]]", "window": "0.5"})
    read = options.GENERATOR.read_all(section, "ManualGenerator")
    assert read == {"seed": None, "points": [["1", "2"]], "shuffle": True}
    read = options.GENERATOR.read_all(section, "SampleAroundPointsGenerator")
    assert (read["samples_per_point"], np.ravel(read["window"]).tolist()) == (1, [0.5])
    assert options.GENERATOR.read_all(section, "OptimizeAcqfGenerator") == {}
