"""Tables of every option that a config may have, for reading, error messages and documentation.

To add an option, add a row: `OptionTable.read` then parses and checks its value; `python -m
tests.support.option_tables` writes the tables of docs/experiments.md. Options without a row are
ignored, except in [farm]. Pure.

`since` is an AEPsych release: "0.8" means that 0.8 and, unless noted, earlier releases have the
option; `OWN` options are specific to farm. Source: AEPsych 0.8.0 and its main branch of January
2026.
"""

from __future__ import annotations

from farm.experiment.config.definition import (
    MODEL_FREE,
    POINT_LISTS,
    GeneratorKind,
    OutcomeKind,
    ParameterKind,
    SurrogateKind,
)
from farm.experiment.config.option_table import (
    REQUIRED,
    Computed,
    ConfigOption,
    Flag,
    Names,
    Number,
    NumberList,
    NumberRows,
    OptionTable,
    OrNone,
    Text,
    Whole,
    Word,
)

BEFORE, AFTER, OWN = "before 0.8", "after 0.8", "farm"

MOST_SECTIONS = 1000
"""Maximum number of parameters, and of strategies."""

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

COMMON = OptionTable(
    (
        ConfigOption(
            "parnames",
            Names("the names of the parameters, such as [x1, x2]", unique=True, most=MOST_SECTIONS),
            REQUIRED,
            "names of the parameters, each of which has a section of that name",
        ),
        ConfigOption(
            "lb",
            NumberList("numbers, one for each of parnames"),
            None,
            "lower bounds of parameters without `lower_bound`",
        ),
        ConfigOption(
            "ub",
            NumberList("numbers, one for each of parnames"),
            None,
            "upper bounds of parameters without `upper_bound`",
        ),
        ConfigOption(
            "outcome_types",
            Names(
                "binary or continuous for each outcome, such as [binary]",
                words=(*OutcomeKind, ORDINAL),
            ),
            REQUIRED,
            "kind of each outcome: 0 or 1, or any number",
        ),
        ConfigOption(
            "outcome_type",
            Word(tuple(OLDER_OUTCOMES)),
            None,
            "older form of `outcome_types` and `stimuli_per_trial`",
            BEFORE,
        ),
        ConfigOption(
            "outcome_names",
            Names("names, one for each of outcome_types", unique=True),
            Computed("`outcome_1`, ..."),
            "names of the outcomes",
        ),
        ConfigOption(
            "stimuli_per_trial", Whole(1), 1, "number of points in a trial: 1, or 2 for pairs"
        ),
        ConfigOption(
            "strategy_names",
            Names(
                "the names of the strategies' sections, such as [init_strat, opt_strat]",
                unique=True,
                most=MOST_SECTIONS,
            ),
            REQUIRED,
            "names of the strategies, in the order in which they run",
        ),
        ConfigOption(
            "extensions",
            Text(),
            None,
            "ignored with a warning: farm does not run files that a config names",
        ),
    )
)

PARAMETER = OptionTable(
    (
        ConfigOption(
            "par_type",
            Word(tuple(ParameterKind)),
            ParameterKind.CONTINUOUS,
            "kind of parameter, see above",
        ),
        ConfigOption("lower_bound", Number(), Computed("that in `lb`"), "smallest value"),
        ConfigOption("upper_bound", Number(), Computed("that in `ub`"), "largest value"),
        ConfigOption(
            "log_scale", Flag(), False, "whether strategies use the logarithm of the values"
        ),
        ConfigOption(
            "value",
            Text("the number or text of a constant parameter"),
            REQUIRED,
            "value of a `fixed` parameter",
        ),
        ConfigOption(
            "choices",
            Names("texts such as [red, green]", unique=True),
            REQUIRED,
            "possible values of a `categorical` parameter",
            AFTER,
        ),
    )
)

STRATEGY = OptionTable(
    (
        ConfigOption(
            "generator",
            Text("a generator such as SobolGenerator"),
            REQUIRED,
            "generator of the points",
        ),
        ConfigOption(
            "model",
            OrNone(Text("a model such as GPRegressionModel")),
            None,
            "model fitted to the outcomes",
        ),
        ConfigOption(
            "acqf",
            Text("an acquisition function such as qLogNoisyExpectedImprovement"),
            None,
            "acquisition function that the generator maximises; the generator's section may "
            "set another",
        ),
        ConfigOption(
            "min_asks",
            Whole(),
            0,
            "minimum number of points before the strategy may finish",
            older="n_trials",
        ),
        ConfigOption(
            "max_asks",
            OrNone(Whole(1)),
            None,
            "number of points after which the strategy is finished",
        ),
        ConfigOption(
            "min_total_tells",
            Whole(),
            0,
            "minimum number of trials of the experiment before the strategy may finish",
        ),
        ConfigOption(
            "min_total_outcome_occurrences",
            Whole(),
            Computed("1 with a binary outcome, else 0"),
            "minimum number of ones, and of zeros, before the strategy may finish",
        ),
        ConfigOption(
            "min_post_range",
            OrNone(Number()),
            None,
            "minimum range of its model's mean before the strategy may finish",
        ),
        ConfigOption(
            "run_indefinitely",
            Flag(),
            False,
            "whether the strategy ignores these rules and does not finish",
        ),
        ConfigOption(
            "refit_every", Whole(1), 1, "number of trials from one fit of the model to the next"
        ),
        ConfigOption(
            "keep_most_recent",
            OrNone(Whole(1)),
            None,
            "number of latest trials that the model is fitted to; by default all",
        ),
        ConfigOption(
            "seed_data_conditions",
            OrNone(Text("the name of a section with lists of values for options of [metadata]")),
            None,
            "selects the earlier experiments whose trials the strategy starts with",
        ),
    )
)

SEED_CONDITIONS = OptionTable(
    (
        ConfigOption(
            "<metadata>", Names(), REQUIRED, "values; a selected experiment has one of them"
        ),
    )
)

GENERATOR = OptionTable(
    (
        ConfigOption(
            "seed",
            OrNone(Whole()),
            None,
            "seed of its random numbers; by default the experiment's seed",
            classes=MODEL_FREE,
        ),
        ConfigOption(
            "size",
            Whole(1, LARGEST_BLOCK),
            Computed(f"`min_asks`, from {SMALLEST_BLOCK} to {LARGEST_BLOCK}"),
            "number of points in a Latin hypercube",
            OWN,
            classes=(GeneratorKind.LATIN_HYPERCUBE,),
        ),
        ConfigOption(
            "points",
            NumberRows("a list of points such as [[0, 1], [1, 0]]"),
            REQUIRED,
            "points, each with a value for every parameter; `fixed` parameters may be left out",
            classes=POINT_LISTS,
        ),
        ConfigOption(
            "shuffle", Flag(), True, "whether the points come in random order", classes=POINT_LISTS
        ),
        ConfigOption(
            "window",
            NumberList("a number, or one for each parameter, 0 or more", least=0),
            REQUIRED,
            "maximum distance from a listed point",
            classes=(GeneratorKind.SAMPLE_AROUND,),
        ),
        ConfigOption(
            "samples_per_point",
            Whole(1),
            1,
            "number of points around each listed point",
            classes=(GeneratorKind.SAMPLE_AROUND,),
        ),
        ConfigOption(
            "generators",
            Names("names, one generator for each outcome"),
            REQUIRED,
            "generators of the class `OptimizeAcqfGenerator`",
            classes=(GeneratorKind.INDEPENDENT,),
        ),
    )
)

MODEL = OptionTable(
    (
        ConfigOption(
            "models",
            Names("names, one model for each outcome"),
            REQUIRED,
            "models, each of one outcome",
            classes=(SurrogateKind.INDEPENDENT,),
        ),
    )
)

ACQUISITION = OptionTable(
    (
        ConfigOption(
            "objective",
            OrNone(Text("an objective such as ProbitObjective")),
            None,
            "transformation of the outcome, applied first, see below",
        ),
        ConfigOption(
            "target", Number(), 0.75, "target level of the outcome, or of its probability"
        ),
        ConfigOption("beta", Number("a number", least=0), 3.84, "weight of the uncertainty"),
        ConfigOption(
            "floor",
            Number("a probability", least=0, below=1),
            0.5,
            "smallest probability that a floor objective returns; the objective's section may set "
            "it too",
        ),
        ConfigOption(
            "query_set_size",
            Whole(1),
            256,
            "number of points over which look-ahead functions average, limited to 16 to 1024",
        ),
    )
)

METADATA = OptionTable(
    (
        ConfigOption("experiment_name", Text(), "", "name of the experiment"),
        ConfigOption("experiment_description", Text(), "", "description of the experiment"),
        ConfigOption(
            "experiment_id", Text(), "", "id in the answer to `info`; by default farm generates one"
        ),
        ConfigOption("participant_id", Text(), "", "id of the participant"),
    )
)

FARM = OptionTable(
    (
        ConfigOption("model", Text("the name of a model"), REQUIRED, "model to evaluate", OWN),
        ConfigOption(
            "in_flight",
            OrNone(Whole(1)),
            None,
            "maximum number of points evaluated at once; by default as many as the farm has room "
            "for. Set it for a farm that grows with demand",
            OWN,
        ),
        ConfigOption(
            "budget",
            OrNone(Whole(1)),
            None,
            "total number of evaluations; by default the strategies' own rules end the loop. "
            "Set it if a rule may never be met, such as a minimum number of ones",
            OWN,
        ),
        ConfigOption(
            "fill",
            Flag(),
            True,
            "whether idle workers evaluate [points that fill the space](#workers-that-never-wait)",
            OWN,
        ),
        ConfigOption(
            "retries", Whole(), 1, "number of retries of a point whose evaluation failed", OWN
        ),
        ConfigOption(
            "seed",
            OrNone(Whole()),
            None,
            "seed of all random numbers; by default the experiment's number",
            OWN,
        ),
        ConfigOption(
            "time_limit",
            Number("seconds", above=0),
            None,
            "time limit of one evaluation. A farm that serves the model for this run kills the "
            "evaluation then; a farm that was already running does so only after its own "
            "`--time-limit`",
            OWN,
        ),
        ConfigOption(
            "max_time",
            Number("seconds", above=0),
            None,
            "time after which the loop requests no more points",
            OWN,
        ),
        ConfigOption(
            "seed_data",
            OrNone(Names("sweep files such as week.h5 or [a.h5, b.h5]")),
            None,
            "files whose evaluations the experiment [begins with](#evaluations-that-are-there); "
            "relative to the folder of the configuration",
            OWN,
        ),
        ConfigOption(
            "input.<input>",
            Text("a number or a parameter"),
            Computed("parameter of that name"),
            "value of this input of the model, or of one of its entries, `input.theta[2]`; by "
            "position `input.in0[2]`",
            OWN,
        ),
        ConfigOption(
            "config.<key>",
            Text("JSON or a text"),
            None,
            "value of this key in the model's config",
            OWN,
        ),
        ConfigOption(
            "outcome.<outcome>",
            Text("an expression over the model's outputs"),
            Computed("output of that name, or the only one, if it is one number"),
            "value of the outcome",
            OWN,
        ),
    )
)
