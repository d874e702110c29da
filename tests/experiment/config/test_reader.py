"""The configuration grammar: configs of users, older spellings, and refusals."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.experiment.config.definition import (
    Config,
    Metadata,
    Outcome,
    OutcomeKind,
    Parameter,
    ParameterKind,
)
from farm.experiment.config.reader import LONGEST_ERROR, read_config
from farm.experiment.space import Space
from tests.experiment import talk

PLAIN = """
[common]
parnames = [x, y]       # two of them
outcome_types = [continuous]
strategy_names = [init_strat, opt_strat]

[x]
par_type = continuous
lower_bound = 0
upper_bound = 1

[y]
par_type = continuous
lower_bound = -2
upper_bound = 2.5

[init_strat]
generator = SobolGenerator
min_asks = 6

[opt_strat]
generator = OptimizeAcqfGenerator
model = GPRegressionModel
min_asks = 12
refit_every = 5

[OptimizeAcqfGenerator]
acqf = qLogNoisyExpectedImprovement
restarts = 4

[SobolGenerator]
seed = 2
"""
TYPES = talk.TYPES.replace("[continuous]", "[binary]")


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def plain(*changes: tuple[str, str]) -> Config:
    return read_config(changed(PLAIN, *changes))


def test_a_whole_config() -> None:
    config = plain()
    assert config.text == PLAIN
    assert config.parameters == (Parameter("x"), Parameter("y", lower=-2.0, upper=2.5))
    assert config.outcomes == (Outcome("outcome_1", OutcomeKind.CONTINUOUS),)
    assert (config.stimuli, config.metadata, config.warnings) == (1, Metadata(), ())
    assert config.farm is None
    first, second = config.strategies
    assert (first.name, first.generator.kind) == ("init_strat", "SobolGenerator")
    assert first.surrogate is None
    assert first.generator.options["seed"] == "2"
    assert (first.min_asks, second.min_asks, second.refit_every) == (6, 12, 5)
    assert second.surrogate is not None
    assert second.surrogate.kind == "GPRegressionModel"
    assert second.generator.acquisition is not None
    assert second.generator.acquisition.kind == "qLogNoisyExpectedImprovement"


def test_types_of_parameters() -> None:
    config = read_config(TYPES)
    assert config.parameters == (
        Parameter("c", lower=-1.0, upper=1.0),
        Parameter("l", lower=0.001, upper=10.0, log_scale=True),
        Parameter("n", ParameterKind.INTEGER, 1.0, 5.0),
        Parameter("flag", ParameterKind.BINARY, 0.0, 1.0),
        Parameter("k", ParameterKind.FIXED, value=4.5),
        Parameter("colour", ParameterKind.FIXED, value="light blue"),
        Parameter(
            "choice", ParameterKind.CATEGORICAL, 0.0, 2.0, choices=("red", "dark, green", "blue")
        ),
    )
    assert [p.name for p in Space.of(config).free] == ["c", "l", "n", "flag", "choice"]


def test_bounds_of_all_parameters_together() -> None:
    text = """
[common]
parnames = [a, b]
lb = [0, -1]
ub = [1, 2]
outcome_types = [binary]
strategy_names = [s]
[b]
upper_bound = 5
[s]
generator = SobolGenerator
"""
    a, b = read_config(text).parameters
    assert (a.lower, a.upper, b.lower, b.upper) == (0.0, 1.0, -1.0, 5.0)
    inherited = changed(text, ("lb = [0, -1]", "lower_bound = -3"))
    assert [p.lower for p in read_config(inherited).parameters] == [-3.0, -3.0]


@pytest.mark.parametrize("source", [PLAIN, TYPES])
def test_a_config_reads_back_and_travels(source: str) -> None:
    config = read_config(source)
    assert read_config(config.text) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_dictionary_means_the_same() -> None:
    config = read_config(
        {
            "common": {
                "parnames": ["x", "y"],
                "outcome_types": "[continuous]",
                "strategy_names": ["init_strat", "opt_strat"],
            },
            "x": {"par_type": "continuous", "lower_bound": 0, "upper_bound": 1},
            "y": {"lower_bound": -2, "upper_bound": "2.5"},
            "init_strat": {"generator": "SobolGenerator", "min_asks": 6.0},
            "opt_strat": {
                "generator": "OptimizeAcqfGenerator",
                "model": "GPRegressionModel",
                "min_asks": 12,
                "refit_every": 5,
                "max_asks": None,
                "run_indefinitely": False,
            },
            "OptimizeAcqfGenerator": {"acqf": "qLogNoisyExpectedImprovement", "restarts": 4},
            "SobolGenerator": {"seed": 2},
        }
    )
    other = plain()
    assert (config.parameters, config.outcomes) == (other.parameters, other.outcomes)
    assert [s.min_asks for s in config.strategies] == [6, 12]
    assert read_config(config.text) == config


def test_sections_as_get_config_answers_them() -> None:
    sections = read_config(
        changed(TYPES, ("[c]\n", "[farm]\nmodel = m\nInput.K = c\n[c]\n"))
    ).sections
    assert sections["common"] == {
        "parnames": "[c, l, n, flag, k, colour, choice]",
        "outcome_types": "[binary]",
        "strategy_names": "[init_strat]",
        "lb": "[-1, 0.001, 1, 0, 0, 0, 0]",
        "ub": "[1, 10, 5, 1, 1, 1, 2]",
    }
    assert sections["flag"] == {"par_type": "binary"} | dict(sections["common"])
    assert next(iter(sections["l"])) == "par_type"
    assert sections["l"]["log_scale"] == "True"
    assert sections["farm"]["input.k"] == "c"


def test_rules_of_strategies() -> None:
    text = changed(
        PLAIN,
        ("min_asks = 6", "max_asks = 9\nmin_total_tells = 3\nmin_total_outcome_occurrences = 4"),
        ("refit_every = 5", "keep_most_recent = 7\nmin_post_range = 0.2\nrun_indefinitely = yes"),
    )
    first, second = read_config(text).strategies
    assert (first.min_asks, first.max_asks, first.min_total_tells) == (0, 9, 3)
    assert first.min_total_outcome_occurrences == 4
    assert (first.keep_most_recent, first.min_post_range) == (None, None)
    assert (second.keep_most_recent, second.min_post_range) == (7, 0.2)
    assert (first.run_indefinitely, second.run_indefinitely) == (False, True)
    assert second.refit_every == 1


@pytest.mark.parametrize(("kind", "least"), [("continuous", 0), ("binary", 1)])
def test_binary_outcomes_are_wanted_once_by_default(kind: str, least: int) -> None:
    config = read_config(changed(TYPES, ("[binary]", f"[{kind}]")))
    assert config.strategies[0].min_total_outcome_occurrences == least


def test_metadata() -> None:
    config = plain(
        (
            "[common]",
            "[metadata]\nexperiment_name = Beam\nexperiment_description = It bends\n"
            "experiment_id = 7\nparticipant_id = p1\nSite = Berlin\n[common]\nseed = 1",
        )
    )
    assert config.metadata == Metadata("Beam", "It bends", "7", "p1", {"site": "Berlin"})


def test_the_farm_section_is_kept_and_checked() -> None:
    config = plain(("[common]", "[farm]\nmodel = Beam\ninput.E = x\n[common]\nseed = 1"))
    assert config.farm == {"model": "Beam", "input.E": "x"}
    with pytest.raises(InvalidInput, match=r"\[farm\] modell is not known; expected one of model"):
        plain(("[common]", "[farm]\nmodell = Beam\n[common]"))


def test_what_is_unknown_is_ignored() -> None:
    config = plain(
        ("[common]", "[elsewhere]\nparnames = [z]\n[common]\nsound = loud\npregen_asks = True")
    )
    assert config.warnings == ()


OLDER = """
[common]
parnames = [x]
lb = 0
ub = 1
outcome_type = single_probit
strategy_names = [s]
[s]
generator = SobolGenerator
n_trials = 7
default_mean_covar_factory = X
"""


@pytest.mark.parametrize(
    ("word", "kind", "stimuli"),
    [
        ("single_probit", OutcomeKind.BINARY, 1),
        ("single_continuous", OutcomeKind.CONTINUOUS, 1),
        ("pairwise_probit", OutcomeKind.BINARY, 2),
    ],
)
def test_older_outcome_types(word: str, kind: OutcomeKind, stimuli: int) -> None:
    config = read_config(changed(OLDER, ("single_probit", word)))
    assert config.outcomes == (Outcome("outcome_1", kind),)
    assert config.stimuli == stimuli
    assert config.strategies[0].min_asks == 7
    assert config.warnings == (
        f"[common] outcome_type = {word} is an older spelling of outcome_types = [{kind}] with "
        f"stimuli_per_trial = {stimuli}",
        "[s] n_trials is an older spelling of min_asks",
    )


def test_newer_spellings_win() -> None:
    config = read_config(
        changed(
            OLDER,
            ("outcome_type =", "outcome_types = continuous\noutcome_type ="),
            ("n_trials = 7", "n_trials = 7\nmin_asks = 8"),
        )
    )
    assert config.outcomes[0].kind is OutcomeKind.CONTINUOUS
    assert config.strategies[0].min_asks == 8
    assert config.warnings == ()


def test_an_older_option_may_stand_in_common() -> None:
    config = read_config(changed(OLDER, ("n_trials = 7", ""), ("lb = 0", "lb = 0\nn_trials = 5")))
    assert config.strategies[0].min_asks == 5
    assert config.warnings[1] == "[common] n_trials is an older spelling of min_asks"


def large(kind: str) -> str:
    """Return a config that would take long unless it is refused or read efficiently."""
    names = ", ".join(f"p{i}" for i in range(1000))
    head = "[common]\noutcome_types = [binary]\nstrategy_names = [s]\n"
    match kind:
        case "bounds":
            bounds = ", ".join(["1e-3"] * 1000)
            return f"{head}parnames = [{names}]\nlb = [{bounds}]\nub = [{bounds}]\n[s]\n"
        case "parameters":
            return f"{head}parnames = [{', '.join(f'p{i}' for i in range(10**5))}]\nlb = 0\n"
        case "strategies":
            head = head.replace("[s]", f"[{', '.join(f's{i}' for i in range(10**5))}]")
            return f"{head}parnames = x\nlb = 0\nub = 1\n"
        case "options":
            return head + "".join(f"o{i} = 1\n" for i in range(30_000))
        case "sections":
            return f"{head}o = {'x' * 500_000}\n" + "".join(f"[a{i}]\n" for i in range(30_000))
    raise AssertionError(kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bounds", "[p0] has the bounds 0.001 and 0.001"),
        ("parameters", "expected 1000 names at most, not 100000"),
        ("strategies", "expected 1000 names at most"),
        ("options", "[common] has 30002 options,"),
        ("sections", "characters in all 30001 sections together; expected 1000 and 8388608 at"),
    ],
)
def test_large_configs_take_no_long_time(kind: str, expected: str) -> None:
    start = time.process_time()
    with pytest.raises(InvalidInput) as caught:
        read_config(large(kind))
    assert time.process_time() - start < 3.0
    assert expected in str(caught.value)
    assert len(str(caught.value)) <= LONGEST_ERROR


def test_files_are_never_run(tmp_path: Path) -> None:
    program = tmp_path / "extension.py"
    program.write_text(f"open({str(tmp_path / 'was_here')!r}, 'w')")
    config = plain(("[common]", f"[common]\nextensions = [{program}]"))
    assert config.warnings == ("[common] extensions is ignored: no files are run for a config",)
    assert not (tmp_path / "was_here").exists()


def test_what_is_ignored_and_matters_is_said() -> None:
    config = plain(("min_asks = 6", "min_post_range = 0.1"))
    assert config.strategies[0].min_post_range is None
    assert [w.partition(" is ignored")[0] for w in config.warnings] == [
        "[init_strat] min_post_range"
    ]


def test_a_warm_start_is_by_metadata() -> None:
    seeds = ("min_asks = 6", "seed_data_conditions = like_this\n[like_this]\nSite = [lab3, lab 4]")
    config = plain(seeds)
    assert config.strategies[0].seed_conditions == {"site": ("lab3", "lab 4")}
    assert config.warnings == ()
    assert (
        plain(("min_asks = 6", "seed_data_conditions = none")).strategies[0].seed_conditions is None
    )


def test_a_sequence_with_a_model_goes_on_until_that_tells_enough() -> None:
    config = plain(("min_asks = 6", "min_post_range = 0.1\nmodel = GPRegressionModel"))
    assert config.strategies[0].min_post_range == 0.1
    assert config.warnings == ()


def test_listed_points_are_checked_with_the_config() -> None:
    manual = ("generator = SobolGenerator", "generator = ManualGenerator")
    points = ("[SobolGenerator]", "[ManualGenerator]\npoints = [[0, 1], [9, 2]]")
    config = plain(manual, points)
    assert config.warnings == ("[ManualGenerator] points: 1 of them lie outside of the bounds",)
    with pytest.raises(InvalidInput, match=r"\[ManualGenerator\] points is missing"):
        plain(manual)


SEEDS = ("min_asks = 6", "seed_data_conditions = site")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([("parnames = [x, y] ", "")], "[common] parnames is missing; expected the names of the"),
        ([("[x, y]", "[x, x]")], "[common] parnames = [x, x]: expected distinct names, but 'x'"),
        ([("[x, y]", "[]")], "[common] parnames = []: expected the names of the parameters, such"),
        ([("[x, y]", "[x, farm]")], "parnames = [x, farm]: expected other names than 'farm', whi"),
        ([("[continuous]", "")], "[common] outcome_types is missing; expected binary or contin"),
        ([("[continuous]", "[real]")], "[common] outcome_types = [real]: expected binary or cont"),
        ([("[continuous]", "[continuous]\noutcome_names = [a, b]")], "expected 1 names, one for"),
        ([("outcome_types = [continuous]", "outcome_type = x")], "outcome_type = x: expected sing"),
        ([("[init_strat, opt_strat]", "")], "[common] strategy_names is missing; expected the n"),
        ([("[init_strat, opt_strat]", "[a, a]")], "distinct names, but 'a' appears twice"),
        ([("[init_strat, opt_strat]", "[a]")], "[a] generator is missing; expected a generator"),
        ([("= -2", "= 7")], "[y] has the bounds 7 and 2.5; expected lower < upper, or par_type ="),
        ([("= -2", "= 2.5")], "[y] has the bounds 2.5 and 2.5; expected lower < upper, or par_ty"),
        ([("= -2", "= -inf")], "[y] lower_bound = -inf: expected a finite number"),
        ([("= -2", "= -1e308"), ("2.5", "1e308")], "[y] has the bounds -1e+308 and 1e+308, too f"),
        ([("lower_bound = -2", "")], "[y] lower_bound is missing, and so is [common] lb; expect"),
        ([("lower_bound = -2", ""), ("[common]", "[common]\nlb = [1]")], "expected 2 numbers, one"),
        ([("lower_bound = -2", "par_type = weird")], "[y] par_type appears twice in the config"),
        ([("min_asks = 6", "min_asks = -1")], "[init_strat] min_asks = -1: expected a whole numbe"),
        ([("min_asks = 6", "max_asks = 0")], "[init_strat] max_asks = 0: expected a whole number"),
        ([("min_asks = 6", "refit_every = 0")], "[init_strat] refit_every = 0: expected a whole"),
        ([("min_asks = 6", "keep_most_recent = 0")], "keep_most_recent = 0: expected a whole numb"),
        ([SEEDS], "seed_data_conditions = site: expected"),
        ([("min_asks = 6", "min_post_range = x")], "min_post_range = x: expected a finite number"),
        ([("min_asks = 6", "run_indefinitely = x")], "run_indefinitely = x: expected true or fals"),
        ([("[common]", "[common]\nstimuli_per_trial = 0")], "stimuli_per_trial = 0: expected a w"),
        ([("seed = 2", "seed = x")], "[SobolGenerator] seed = x: expected a whole number, 0 or"),
        ([("[continuous]", "[ordinal]")], "[common] outcome_types: ordinal outcomes are not offer"),
        ([("[common]", "[common]\nstimuli_per_trial = 3")], "stimuli_per_trial = 3 is not offered"),
        ([("GPRegressionModel", "MonotonicRejectionGP")], "is not offered; use GPClassificationM"),
    ],
)
def test_refusals(changes: list[tuple[str, str]], expected: str) -> None:
    with pytest.raises(UnsupportedFeature if "offer" in expected else InvalidInput) as caught:
        plain(*changes)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("upper_bound = 5.0", "upper_bound = 5.5", "[n] is integer, but upper_bound is 5.5; expec"),
        ("upper_bound = 5.0", "upper_bound = 1e300", "[n] is integer, but upper_bound is 1e+300"),
        (
            "= binary",
            "= binary\nupper_bound = 1",
            "[flag] upper_bound = 1: expected none, as the p",
        ),
        (
            "= binary",
            "= binary\nlog_scale = True",
            "[flag] log_scale = True: expected none, as the",
        ),
        (
            "par_type = cat",
            "log_scale = yes\npar_type = cat",
            "[choice] log_scale = yes: expected n",
        ),
        ("value = 4.5", "", "[k] value is missing; expected the number or text of a constant"),
        ('[red, "dark, green", blue]', "[red]", "choices = [red]: expected at least two; for one"),
        ('[red, "dark, green", blue]', "", "[choice] choices is missing; expected texts such"),
        ("[c, l, n, flag, k, colour, choice]", "[k]", "at least one parameter that is not fixed"),
        ("log_scale = True", "log_scale = maybe", "[l] log_scale = maybe: expected true or false"),
        ("par_type = fixed", "par_type = fix", "[k] par_type = fix: expected continuous, integer"),
    ],
)
def test_parameters_that_are_refused(old: str, new: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_config(changed(TYPES, (old, new)))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        *("", " \n", "{}", "[common]", "\0", "[common]\nparnames", "\x85[common]"),
        *({}, {"common": None}, {"common": {"parnames": {}}}, {"common": {"parnames": [[[]]]}}),
        {"common": {"parnames": ["a\nb"], "outcome_types": "binary", "strategy_names": "s"}},
        *(f"[{'x' * 10**5}]\na\na", {"x" * 10**5: 1}),
        *("[common]\nparnames = " + "x, " * 10**5, "[common]\nparnames = [\n x,\n x,\n]"),
    ],
)
def test_what_is_no_config_is_refused_in_one_short_line(source: Any) -> None:
    with pytest.raises(FarmError) as caught:
        read_config(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= LONGEST_ERROR


LINES = sorted({*PLAIN.splitlines(), *TYPES.splitlines(), *OLDER.splitlines(), "[farm]", "model=m"})


@given(st.lists(st.sampled_from(LINES), max_size=25, unique=True))
def test_any_lines_are_a_config_or_refused(lines: list[str]) -> None:
    try:
        config = read_config("[common]\n" + "\n".join(lines))
    except FarmError as error:
        refusal = str(error)
    else:
        assert read_config(config.text) == config
        refusal = ""
    assert "\n" not in refusal


@example(["\"',:[", "]"])
@given(
    st.lists(
        st.text("ab ,[]'\"#:=$").map(lambda s: s.replace("$", "$$").strip()).filter(bool),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
def test_names_of_any_marks_come_through_a_dictionary(names: list[str]) -> None:
    source: Mapping[str, Any] = {
        "common": {
            "parnames": names,
            "lb": [0] * len(names),
            "ub": [1] * len(names),
            "outcome_types": ["binary"],
            "strategy_names": ["s"],
        },
        "s": {"generator": "SobolGenerator"},
    }
    try:
        config = read_config(source)
    except InvalidInput:
        assert any("'" in name and '"' in name for name in names)
        return
    assert [p.name for p in config.parameters] == [n.replace("$$", "$") for n in names]
