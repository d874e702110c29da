"""Tables of every option that a config may have, for reading, error messages and documentation.

To add an option, add a row: `OptionTable.read` then parses and checks its value, and `python -m
tests.support.option_tables` adds it to docs/experiments.md. Options without a row are ignored,
except in [farm]. `ConfigOption` explains the columns. Source: AEPsych 0.8.0 and its main branch of
January 2026. Pure.
"""

from __future__ import annotations

from farm.experiment.config.definition import OutcomeKind, ParameterKind
from farm.experiment.config.option_table import OptionTable, spoken

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 4096
"""Points of one Latin hypercube, which is computed as a whole for every ask."""

OLDER_OUTCOMES = {
    "single_probit": (OutcomeKind.BINARY, 1),
    "single_continuous": (OutcomeKind.CONTINUOUS, 1),
    "pairwise_probit": (OutcomeKind.BINARY, 2),
}
"""Words of `outcome_type`: the kind of outcome and the number of stimuli."""

ORDINAL = "ordinal"
"""A word of `outcome_types` that AEPsych supports and farm refuses."""

COMMON = OptionTable(f"""
parnames | sections: the names of the parameters, such as [x1, x2] | required
lb | numbers: numbers, one for each of parnames | none
ub | numbers: numbers, one for each of parnames | none
outcome_types | names: binary or continuous for each outcome, such as [binary] | required
outcome_type | word: {spoken(OLDER_OUTCOMES)} | none
outcome_names | distinct: names, one for each of outcome_types | `outcome_1`, ...
stimuli_per_trial | whole: a whole number, 1 or more | 1
strategy_names | sections: the names of the strategies' sections, such as [init_strat, opt_strat] |
    required
extensions | text: a text | none
""")

PARAMETER = OptionTable(f"""
par_type | word: {spoken(ParameterKind)} | continuous
lower_bound | number: a finite number | that in `lb`
upper_bound | number: a finite number | that in `ub`
log_scale | flag: true or false | false
value | text: the number or text of a constant parameter | required
choices | distinct: texts such as [red, green] | required
""")

STRATEGY = OptionTable("""
generator | text: a generator such as SobolGenerator | required
model | text: a model such as GPRegressionModel, or none | none
acqf | text: an acquisition function such as qLogNoisyExpectedImprovement | none
min_asks | whole: a whole number, 0 or more | 0 | older = n_trials
max_asks | whole: a whole number, 1 or more, or none | none
min_total_tells | whole: a whole number, 0 or more | 0
min_total_outcome_occurrences | whole: a whole number, 0 or more | 1 with a binary outcome, else 0
min_post_range | number: a finite number, or none | none
run_indefinitely | flag: true or false | false
refit_every | whole: a whole number, 1 or more | 1
keep_most_recent | whole: a whole number, 1 or more, or none | none
seed_data_conditions | text: the name of a section with lists of values for options of [metadata],
    or none | none
""")

SEED_CONDITIONS = OptionTable("""
<metadata> | names: a list such as [a, b] | required
""")

GENERATOR = OptionTable(f"""
seed | whole: a whole number, 0 or more, or none | none | classes = HaltonGenerator,
    LatinHypercubeGenerator, ManualGenerator, RandomGenerator, SampleAroundPointsGenerator,
    SobolGenerator
size | whole: a whole number from 1 to {LARGEST_BLOCK} | `min_asks`, from {SMALLEST_BLOCK} to
    {LARGEST_BLOCK} | classes = LatinHypercubeGenerator
points | rows: a list of points such as [[0, 1], [1, 0]] | required | classes = ManualGenerator,
    SampleAroundPointsGenerator
shuffle | flag: true or false | true | classes = ManualGenerator, SampleAroundPointsGenerator
window | numbers: a number, or one for each parameter, 0 or more | required | classes =
    SampleAroundPointsGenerator
samples_per_point | whole: a whole number, 1 or more | 1 | classes = SampleAroundPointsGenerator
generators | names: names, one generator for each outcome | required | classes =
    IndependentOptimizeAcqfGenerator
""")

MODEL = OptionTable("""
models | names: names, one model for each outcome | required | classes = IndependentGPsModel
""")

ACQUISITION = OptionTable("""
objective | text: an objective such as ProbitObjective, or none | none
target | number: a finite number | 0.75
beta | number: a number, 0 or more | 3.84
floor | number: a probability, 0 or more and less than 1 | 0.5
query_set_size | whole: a whole number, 1 or more | 256
""")

METADATA = OptionTable("""
experiment_name | text: a text | none
experiment_description | text: a text | none
experiment_id | text: a text | none
participant_id | text: a text | none
""")

FARM = OptionTable("""
model | text: the name of a model | required
in_flight | whole: a whole number, 1 or more, or none | none
budget | whole: a whole number, 1 or more, or none | none
fill | flag: true or false | true
retries | whole: a whole number, 0 or more | 1
seed | whole: a whole number, 0 or more, or none | none
time_limit | number: seconds, more than 0 | none
max_time | number: seconds, more than 0 | none
seed_data | names: sweep files such as week.h5 or [a.h5, b.h5], or none | none
input.<input> | text: a number or a parameter | parameter of that name
config.<key> | text: JSON or a text | none
outcome.<outcome> | text: an expression over the model's outputs | output of that name, or the only
    one, if it is one number
""")
