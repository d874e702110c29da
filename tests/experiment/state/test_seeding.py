"""Warm starts: which trials a strategy begins with, and which rules count them."""

from __future__ import annotations

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.state import seeding
from tests.experiment.talk import (
    FARM,
    MODEL,
    OUTCOMES,
    PAIRS,
    TWO,
    TYPES,
    Fake,
    Talk,
    replayed,
    state,
)

SEEDS = "\n[like_this]\nsite = [lab1, lab 2]\nparticipant_id = p01\n"
META = "\n[metadata]\nexperiment_name = %s\nparticipant_id = %s\nsite = %s\n"


def warm(config: str, conditions: str = SEEDS, strategy: str = "init_strat") -> str:
    """Return the config with a warm start of a strategy."""
    head = f"[{strategy}]"
    assert head in config
    return config.replace(head, f"{head}\nseed_data_conditions = like_this") + conditions


def told(talk: Talk, config: str, metadata: str, *outcomes: float) -> int:
    """Set up an experiment with trials at x1 = outcome, x2 = 1; return its number."""
    number = talk.setup(config + metadata)
    for outcome in outcomes:
        talk.tell({"x1": outcome, "x2": 1.0}, outcome)
    return number


@pytest.fixture
def talk() -> Fake:
    return Fake()


def known(talk: Talk, strategy: int = 0) -> list[float]:
    """Return the outcomes that the surrogate of the current experiment's strategy is fitted to."""
    data = talk.current.data(strategy)
    assert data.x[:, 0, 0].tolist() == data.y[:, 0].tolist()
    assert data.fit_to == len(data.y)
    return [float(y) for y in data.y[:, 0]]


def test_conditions_are_met_all_and_each_by_one_of_its_values(talk: Fake) -> None:
    told(talk, TWO, META % ("a", "p01", "lab1"), 1.0, 2.0)
    told(talk, TWO, META % ("b", "p02", "lab1"), 3.0)
    told(talk, TWO, META % ("c", "p01", "lab 2"), 4.0)
    told(talk, TWO, META % ("d", "p01", "lab3"), 5.0)
    told(talk, TWO, "", 6.0)
    talk.setup(warm(TWO))
    assert known(talk) == [1.0, 2.0, 4.0]
    assert talk.say("info")["notes"] == [
        "[init_strat] initial trials: 3, from earlier experiments: 2"
    ]
    talk.tell({"x1": 7.0, "x2": 1.0}, 7.0)
    assert known(talk) == [1.0, 2.0, 4.0, 7.0]


@pytest.mark.parametrize("condition", ["experiment_name = [x, b]", "experiment_id = the-id"])
def test_the_names_of_metadata(talk: Fake, condition: str) -> None:
    told(talk, TWO, META % ("a", "p01", "lab1"), 1.0)
    told(talk, TWO, META % ("b", "p01", "lab1") + "experiment_id = the-id\n", 2.0)
    talk.setup(warm(TWO, f"\n[like_this]\n{condition}\n"))
    assert known(talk) == [2.0]


def test_without_conditions_all_that_are_alike_are_taken(talk: Fake) -> None:
    told(talk, TWO, "", 1.0)
    told(talk, TWO, META % ("b", "p01", "lab1"), 2.0)
    talk.setup(warm(TWO, "\n[like_this]\n"))
    assert known(talk) == [1.0, 2.0]


@pytest.mark.parametrize(
    "other",
    [
        TWO.replace("x2", "x3"),
        TWO.replace(
            "par_type = continuous\nlower_bound = 0", "par_type = integer\nlower_bound = 0"
        ),
        TWO.replace("[continuous]", "[binary]"),
        TWO.replace("[common]", "[common]\noutcome_names = [other]"),
        OUTCOMES,
        PAIRS,
    ],
)
def test_experiments_of_another_kind_are_left_out(talk: Fake, other: str) -> None:
    talk.setup(other)
    names = list(talk.ask())
    value = [0.5, 1.0] if other is PAIRS else 1.0
    outcome = {"responded": 1, "size": 1} if other is OUTCOMES else 1
    assert talk.tell(dict.fromkeys(names, value), outcome) == (1, 1)
    talk.setup(warm(TWO, "\n[like_this]\n"))
    assert known(talk) == []
    (note,) = talk.say("info")["notes"]
    assert note.endswith("; left out because their parameters, outcomes or stimuli differ: 1")


def test_nothing_found_is_said(talk: Fake) -> None:
    talk.setup(warm(TWO))
    (note,) = talk.say("info")["notes"]
    assert note.endswith("no earlier experiment meets its seed_data_conditions")


def test_trials_that_are_not_modelled_and_seeds_of_others_are_no_seeds(talk: Fake) -> None:
    number = told(talk, TWO, "", 1.0)
    talk.tell({"x1": 2.0, "x2": 1.0}, 2.0, model_data=False)
    talk.setup(warm(TWO, "\n[like_this]\n"))
    assert known(talk) == [1.0]
    talk.setup(warm(TWO, "\n[like_this]\n"))
    assert known(talk) == [1.0]
    talk.say("resume", {"strat_id": number})
    talk.tell({"x1": 3.0, "x2": 1.0}, 3.0)
    talk.say("resume", {"strat_id": number + 1})
    assert known(talk) == [1.0], "the warm start is fixed at setup"


def test_other_bounds_are_said_and_orders_do_not_matter(talk: Fake) -> None:
    talk.setup(TWO.replace("[x1, x2]", "[x2, x1]").replace("= 10", "= 90"))
    talk.tell({"x2": 1.0, "x1": 50.0}, 50.0)
    talk.setup(warm(TWO, "\n[like_this]\n"))
    assert known(talk) == [50.0]
    (note,) = talk.say("info")["notes"]
    assert note.endswith("; the bounds of x1 differ")


def test_outcomes_of_another_order(talk: Fake) -> None:
    talk.setup(OUTCOMES)
    talk.tell({"x1": 1.0, "x2": 2.0}, {"responded": 1, "size": 7.5})
    swapped = OUTCOMES.replace("[binary, continuous]", "[continuous, binary]")
    talk.setup(warm(swapped.replace("[responded, size]", "[size, responded]"), "\n[like_this]\n"))
    assert talk.current.data(0).y.tolist() == [[7.5, 1.0]]


def test_choices_are_texts_and_what_is_undefined_here_is_left_out(talk: Fake) -> None:
    talk.setup(TYPES.replace("lower_bound = 0.001", "lower_bound = 0"))
    point = {"c": 0.5, "n": 2, "flag": 1, "k": 4.5, "colour": "light blue"}
    for choice, scale in (("blue", 1.0), ("dark, green", 1.0), ("red", 1.0), ("red", 0.0)):
        talk.tell({**point, "choice": choice, "l": scale}, 1.0)
    talk.setup(
        warm(TYPES.replace('[red, "dark, green", blue]', "[oval, blue, red]"), "\n[like_this]\n")
    )
    assert talk.current.data(0).x[:, 0].tolist() == [
        [0.5, 1.0, 2.0, 1.0, 1.0],
        [0.5, 1.0, 2.0, 1.0, 2.0],
    ]
    (note,) = talk.say("info")["notes"]
    assert "undefined here or beyond the limit: 2" in note
    assert note.endswith("the bounds of l differ")


@pytest.mark.parametrize(("limit", "most"), [("MOST_TRIALS", 2), ("MOST_NUMBERS", 5)])
def test_only_the_last_of_very_many_are_taken(
    talk: Fake, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(seeding, limit, most)
    told(talk, TWO, "", 1.0, 2.0, 3.0)
    talk.setup(warm(TWO, "\n[like_this]\n"))
    assert known(talk) == [2.0, 3.0]


def test_seeds_are_of_a_strategy_and_those_after_it(talk: Fake) -> None:
    told(talk, MODEL, "", 1.0)
    talk.setup(warm(MODEL, "\n[like_this]\n", "opt_strat"))
    assert known(talk, 0) == []
    assert known(talk, 1) == [1.0]
    both = warm(MODEL, "\n[like_this]\n", "common")
    talk.setup(both)
    assert known(talk, 0) == known(talk, 1) == [1.0], "each trial once"


def test_seeds_answer_queries_and_are_no_tells(talk: Fake) -> None:
    told(talk, TWO, "", *range(10))
    talk.setup(warm(MODEL, "\n[like_this]\n", "opt_strat"))
    assert len(talk.query().data.x) == 10
    info = talk.say("info")
    assert info["current_strat_data_pts"] == 0
    assert not info["current_strat_can_fit"], "its first strategy has no model"
    talk.ask(7)
    assert talk.current.strategy_index == 0, "no trial is recorded yet"
    talk.say("finish_strategy")
    talk.ask()
    assert talk.say("info")["current_strat_can_fit"]
    talk.setup(MODEL)
    with pytest.raises(InvalidInput, match="needs data"):
        talk.say("query")


def test_fits_are_counted_from_the_seeds_on(talk: Fake) -> None:
    told(talk, TWO, "", 1.0, 2.0, 3.0)
    rules = TWO.replace("min_asks = 6", "refit_every = 2\nkeep_most_recent = 4")
    talk.setup(warm(rules, "\n[like_this]\n"))
    fits = []
    for outcome in (4.0, 5.0, 6.0):
        data = talk.current.data(0)
        fits.append((data.y[:, 0].tolist(), data.fit_to))
        talk.tell({"x1": outcome, "x2": 1.0}, outcome)
    assert fits == [
        ([1.0, 2.0, 3.0], 3),
        ([1.0, 2.0, 3.0, 4.0], 3),
        ([2.0, 3.0, 4.0, 5.0], 4),
    ]


def given(talk: Fake, config: str, *outcomes: float) -> None:
    """Set up an experiment with given trials at x1 = outcome, x2 = 1."""
    points = np.array([[[outcome, 1.0]] for outcome in outcomes])
    trials = seeding.InitialTrials(points, np.array(outcomes)[:, None], "from a file")
    step = talk.session.set_up(config, talk.now, [trials])
    for event in step.events:
        talk.server.apply(event)
    talk.session.took(step)


def test_given_trials_are_of_the_first_strategy_and_those_after_it(talk: Fake) -> None:
    given(talk, MODEL, 1.0, 2.0)
    assert known(talk, 0) == known(talk, 1) == [1.0, 2.0]
    assert talk.say("info")["notes"] == ["[init_strat] from a file"]
    assert talk.say("info")["current_strat_data_pts"] == 0
    talk.tell({"x1": 3.0, "x2": 1.0}, 3.0)
    assert known(talk, 1) == [1.0, 2.0, 3.0]
    assert talk.current.modelled == 1
    again = replayed(talk.server.events)
    assert state(again[0]) == state(talk.current)


def test_given_trials_and_earlier_experiments_add_up(talk: Fake) -> None:
    told(talk, TWO, "", 1.0)
    given(talk, warm(TWO, "\n[like_this]\n"), 2.0, 3.0)
    assert known(talk) == [2.0, 3.0, 1.0]


def test_a_client_cannot_make_a_server_read_files(talk: Fake) -> None:
    talk.setup(f"{FARM}seed_data = [week.h5, /etc/passwd]\n")
    (note,) = talk.say("info")["notes"]
    assert note.startswith("[init_strat] starts without trials: [farm] seed_data is ignored")
    assert known(talk) == []
    talk.setup(FARM)
    assert "notes" not in talk.say("info")
    given(talk, f"{FARM}seed_data = week.h5\n", 1.0)
    assert talk.say("info")["notes"] == ["[init_strat] from a file"]
