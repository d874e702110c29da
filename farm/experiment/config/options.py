"""Tables of every option that a config may have, for reading, error messages and documentation.

To add an option, add a row: `OptionTable.read` then parses and checks its value; `python -m
tests.support.option_tables` writes the tables of docs/experiments.md. Options without a row are
ignored, except in [farm]. `ConfigOption` explains the columns. Pure.

`since` is an AEPsych release: "0.8", if it is missing, means that 0.8 and earlier releases have the
option; "farm" means that only farm has it. Source: AEPsych 0.8.0 and its main branch of January
2026.
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
parnames | sections: the names of the parameters, such as [x1, x2] | required | names of the
    parameters, each of which has a section of that name
lb | numbers: numbers, one for each of parnames | none | lower bounds of parameters without
    `lower_bound`
ub | numbers: numbers, one for each of parnames | none | upper bounds of parameters without
    `upper_bound`
outcome_types | names: binary or continuous for each outcome, such as [binary] | required | kind of
    each outcome: 0 or 1, or any number
outcome_type | word: {spoken(OLDER_OUTCOMES)} | none | older form of
    `outcome_types` and `stimuli_per_trial` | since = before 0.8
outcome_names | distinct: names, one for each of outcome_types | `outcome_1`, ... | names of the
    outcomes
stimuli_per_trial | whole: a whole number, 1 or more | 1 | number of points in a trial: 1, or 2 for
    pairs
strategy_names | sections: the names of the strategies' sections, such as [init_strat, opt_strat] |
    required | names of the strategies, in the order in which they run
extensions | text: a text | none | ignored with a warning: farm does not run files that a config
    names
""")

PARAMETER = OptionTable(f"""
par_type | word: {spoken(ParameterKind)} | continuous | kind of
    parameter, see above
lower_bound | number: a finite number | that in `lb` | smallest value
upper_bound | number: a finite number | that in `ub` | largest value
log_scale | flag: true or false | false | whether strategies use the logarithm of the values
value | text: the number or text of a constant parameter | required | value of a `fixed` parameter
choices | distinct: texts such as [red, green] | required | possible values of a `categorical`
    parameter | since = after 0.8
""")

STRATEGY = OptionTable("""
generator | text: a generator such as SobolGenerator | required | generator of the points
model | text: a model such as GPRegressionModel, or none | none | model fitted to the outcomes
acqf | text: an acquisition function such as qLogNoisyExpectedImprovement | none | acquisition
    function that the generator maximises; the generator's section may set another
min_asks | whole: a whole number, 0 or more | 0 | minimum number of points before the strategy may
    finish | older = n_trials
max_asks | whole: a whole number, 1 or more, or none | none | number of points after which the
    strategy is finished
min_total_tells | whole: a whole number, 0 or more | 0 | minimum number of trials of the experiment
    before the strategy may finish
min_total_outcome_occurrences | whole: a whole number, 0 or more | 1 with a binary outcome, else 0
    | minimum number of ones, and of zeros, before the strategy may finish
min_post_range | number: a finite number, or none | none | minimum range of its model's mean before
    the strategy may finish
run_indefinitely | flag: true or false | false | whether the strategy ignores these rules and does
    not finish
refit_every | whole: a whole number, 1 or more | 1 | number of trials from one fit of the model to
    the next
keep_most_recent | whole: a whole number, 1 or more, or none | none | number of latest trials that
    the model is fitted to; by default all
seed_data_conditions | text: the name of a section with lists of values for options of [metadata],
    or none | none | selects the earlier experiments whose trials the strategy starts with
""")

SEED_CONDITIONS = OptionTable("""
<metadata> | names: a list such as [a, b] | required | values; a selected experiment has one of
    them
""")

GENERATOR = OptionTable(f"""
seed | whole: a whole number, 0 or more, or none | none | seed of its random numbers; by default
    the experiment's seed | classes = HaltonGenerator, LatinHypercubeGenerator, ManualGenerator,
    RandomGenerator, SampleAroundPointsGenerator, SobolGenerator
size | whole: a whole number from 1 to {LARGEST_BLOCK} |
    `min_asks`, from {SMALLEST_BLOCK} to {LARGEST_BLOCK} | number of points in a Latin hypercube |
    classes = LatinHypercubeGenerator | since = farm
points | rows: a list of points such as [[0, 1], [1, 0]] | required | points, each with a value for
    every parameter; `fixed` parameters may be left out | classes = ManualGenerator,
    SampleAroundPointsGenerator
shuffle | flag: true or false | true | whether the points come in random order | classes =
    ManualGenerator, SampleAroundPointsGenerator
window | numbers: a number, or one for each parameter, 0 or more | required | maximum distance from
    a listed point | classes = SampleAroundPointsGenerator
samples_per_point | whole: a whole number, 1 or more | 1 | number of points around each listed
    point | classes = SampleAroundPointsGenerator
generators | names: names, one generator for each outcome | required | generators of the class
    `OptimizeAcqfGenerator` | classes = IndependentOptimizeAcqfGenerator
""")

MODEL = OptionTable("""
models | names: names, one model for each outcome | required | models, each of one outcome |
    classes = IndependentGPsModel
""")

ACQUISITION = OptionTable("""
objective | text: an objective such as ProbitObjective, or none | none | transformation of the
    outcome, applied first, see below
target | number: a finite number | 0.75 | target level of the outcome, or of its probability
beta | number: a number, 0 or more | 3.84 | weight of the uncertainty
floor | number: a probability, 0 or more and less than 1 | 0.5 | smallest probability that a floor
    objective returns; the objective's section may set it too
query_set_size | whole: a whole number, 1 or more | 256 | number of points over which look-ahead
    functions average, limited to 16 to 1024
""")

METADATA = OptionTable("""
experiment_name | text: a text | none | name of the experiment
experiment_description | text: a text | none | description of the experiment
experiment_id | text: a text | none | id in the answer to `info`; by default farm generates one
participant_id | text: a text | none | id of the participant
""")

FARM = OptionTable("""
model | text: the name of a model | required | model to evaluate
in_flight | whole: a whole number, 1 or more, or none | none | maximum number of points evaluated
    at once; by default as many as the farm has room for. Set it for a farm that grows with demand
budget | whole: a whole number, 1 or more, or none | none | total number of evaluations; by default
    the strategies' own rules end the loop. Set it if a rule may never be met, such as a minimum
    number of ones
fill | flag: true or false | true | whether idle workers evaluate [points that fill the
    space](#workers-that-never-wait)
retries | whole: a whole number, 0 or more | 1 | number of retries of a point whose evaluation
    failed
seed | whole: a whole number, 0 or more, or none | none | seed of all random numbers; by default
    the experiment's number
time_limit | number: seconds, more than 0 | none | time limit of one evaluation. A farm that serves
    the model for this run kills the evaluation then; a farm that was already running does so only
    after its own `--time-limit`
max_time | number: seconds, more than 0 | none | time after which the loop requests no more points
seed_data | names: sweep files such as week.h5 or [a.h5, b.h5], or none | none | files whose
    evaluations the experiment [begins with](#evaluations-that-are-there); relative to the folder
    of the configuration
input.<input> | text: a number or a parameter | parameter of that name | value of this input of the
    model, or of one of its entries, `input.theta[2]`; by position `input.in0[2]`
config.<key> | text: JSON or a text | none | value of this key in the model's config
outcome.<outcome> | text: an expression over the model's outputs | output of that name, or the only
    one, if it is one number | value of the outcome
""")
