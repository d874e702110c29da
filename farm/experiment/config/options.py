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
    ConfigOption(
        "parnames",
        Names("the names of the parameters, such as [x1, x2]", unique=True, most=MOST_SECTIONS),
        "names of the parameters, each of which has a section of that name",
        REQUIRED,
    ),
    ConfigOption(
        "lb",
        NumberList("numbers, one for each of parnames"),
        "lower bounds of parameters without `lower_bound`",
    ),
    ConfigOption(
        "ub",
        NumberList("numbers, one for each of parnames"),
        "upper bounds of parameters without `upper_bound`",
    ),
    ConfigOption(
        "outcome_types",
        Names(
            "binary or continuous for each outcome, such as [binary]", words=(*OutcomeKind, ORDINAL)
        ),
        "kind of each outcome: 0 or 1, or any number",
        REQUIRED,
    ),
    ConfigOption(
        "outcome_type",
        Word(tuple(OLDER_OUTCOMES)),
        "older form of `outcome_types` and `stimuli_per_trial`",
        since=BEFORE,
    ),
    ConfigOption(
        "outcome_names",
        Names("names, one for each of outcome_types", unique=True),
        "names of the outcomes",
        Computed("`outcome_1`, ..."),
    ),
    ConfigOption(
        "stimuli_per_trial", Whole(1), "number of points in a trial: 1, or 2 for pairs", 1
    ),
    ConfigOption(
        "strategy_names",
        Names(
            "the names of the strategies' sections, such as [init_strat, opt_strat]",
            unique=True,
            most=MOST_SECTIONS,
        ),
        "names of the strategies, in the order in which they run",
        REQUIRED,
    ),
    ConfigOption(
        "extensions", Text(), "ignored with a warning: farm does not run files that a config names"
    ),
)

PARAMETER = OptionTable(
    ConfigOption(
        "par_type",
        Word(tuple(ParameterKind)),
        "kind of parameter, see above",
        ParameterKind.CONTINUOUS,
    ),
    ConfigOption("lower_bound", Number(), "smallest value", Computed("that in `lb`")),
    ConfigOption("upper_bound", Number(), "largest value", Computed("that in `ub`")),
    ConfigOption("log_scale", Flag(), "whether strategies use the logarithm of the values", False),
    ConfigOption(
        "value",
        Text("the number or text of a constant parameter"),
        "value of a `fixed` parameter",
        REQUIRED,
    ),
    ConfigOption(
        "choices",
        Names("texts such as [red, green]", unique=True),
        "possible values of a `categorical` parameter",
        REQUIRED,
        AFTER,
    ),
)

STRATEGY = OptionTable(
    ConfigOption(
        "generator", Text("a generator such as SobolGenerator"), "generator of the points", REQUIRED
    ),
    ConfigOption(
        "model", OrNone(Text("a model such as GPRegressionModel")), "model fitted to the outcomes"
    ),
    ConfigOption(
        "acqf",
        Text("an acquisition function such as qLogNoisyExpectedImprovement"),
        "acquisition function that the generator maximises; the generator's section may "
        "set another",
    ),
    ConfigOption(
        "min_asks",
        Whole(),
        "minimum number of points before the strategy may finish",
        0,
        older="n_trials",
    ),
    ConfigOption(
        "max_asks", OrNone(Whole(1)), "number of points after which the strategy is finished"
    ),
    ConfigOption(
        "min_total_tells",
        Whole(),
        "minimum number of trials of the experiment before the strategy may finish",
        0,
    ),
    ConfigOption(
        "min_total_outcome_occurrences",
        Whole(),
        "minimum number of ones, and of zeros, before the strategy may finish",
        Computed("1 with a binary outcome, else 0"),
    ),
    ConfigOption(
        "min_post_range",
        OrNone(Number()),
        "minimum range of its model's mean before the strategy may finish",
    ),
    ConfigOption(
        "run_indefinitely",
        Flag(),
        "whether the strategy ignores these rules and does not finish",
        False,
    ),
    ConfigOption(
        "refit_every", Whole(1), "number of trials from one fit of the model to the next", 1
    ),
    ConfigOption(
        "keep_most_recent",
        OrNone(Whole(1)),
        "number of latest trials that the model is fitted to; by default all",
    ),
    ConfigOption(
        "seed_data_conditions",
        OrNone(Text("the name of a section with lists of values for options of [metadata]")),
        "selects the earlier experiments whose trials the strategy starts with",
    ),
)

SEED_CONDITIONS = OptionTable(
    ConfigOption("<metadata>", Names(), "values; a selected experiment has one of them", REQUIRED)
)

GENERATOR = OptionTable(
    ConfigOption(
        "seed",
        OrNone(Whole()),
        "seed of its random numbers; by default the experiment's seed",
        classes=MODEL_FREE,
    ),
    ConfigOption(
        "size",
        Whole(1, LARGEST_BLOCK),
        "number of points in a Latin hypercube",
        Computed(f"`min_asks`, from {SMALLEST_BLOCK} to {LARGEST_BLOCK}"),
        OWN,
        classes=(GeneratorKind.LATIN_HYPERCUBE,),
    ),
    ConfigOption(
        "points",
        NumberRows("a list of points such as [[0, 1], [1, 0]]"),
        "points, each with a value for every parameter; `fixed` parameters may be left out",
        REQUIRED,
        classes=POINT_LISTS,
    ),
    ConfigOption(
        "shuffle", Flag(), "whether the points come in random order", True, classes=POINT_LISTS
    ),
    ConfigOption(
        "window",
        NumberList("a number, or one for each parameter, 0 or more", least=0),
        "maximum distance from a listed point",
        REQUIRED,
        classes=(GeneratorKind.SAMPLE_AROUND,),
    ),
    ConfigOption(
        "samples_per_point",
        Whole(1),
        "number of points around each listed point",
        1,
        classes=(GeneratorKind.SAMPLE_AROUND,),
    ),
    ConfigOption(
        "generators",
        Names("names, one generator for each outcome"),
        "generators of the class `OptimizeAcqfGenerator`",
        REQUIRED,
        classes=(GeneratorKind.INDEPENDENT,),
    ),
)

MODEL = OptionTable(
    ConfigOption(
        "models",
        Names("names, one model for each outcome"),
        "models, each of one outcome",
        REQUIRED,
        classes=(SurrogateKind.INDEPENDENT,),
    )
)

ACQUISITION = OptionTable(
    ConfigOption(
        "objective",
        OrNone(Text("an objective such as ProbitObjective")),
        "transformation of the outcome, applied first, see below",
    ),
    ConfigOption("target", Number(), "target level of the outcome, or of its probability", 0.75),
    ConfigOption("beta", Number("a number", least=0), "weight of the uncertainty", 3.84),
    ConfigOption(
        "floor",
        Number("a probability", least=0, below=1),
        "smallest probability that a floor objective returns; the objective's section may set "
        "it too",
        0.5,
    ),
    ConfigOption(
        "query_set_size",
        Whole(1),
        "number of points over which look-ahead functions average, limited to 16 to 1024",
        256,
    ),
)

METADATA = OptionTable(
    ConfigOption("experiment_name", Text(), "name of the experiment", ""),
    ConfigOption("experiment_description", Text(), "description of the experiment", ""),
    ConfigOption(
        "experiment_id", Text(), "id in the answer to `info`; by default farm generates one", ""
    ),
    ConfigOption("participant_id", Text(), "id of the participant", ""),
)

FARM = OptionTable(
    ConfigOption("model", Text("the name of a model"), "model to evaluate", REQUIRED),
    ConfigOption(
        "in_flight",
        OrNone(Whole(1)),
        "maximum number of points evaluated at once; by default as many as the farm has room "
        "for. Set it for a farm that grows with demand",
    ),
    ConfigOption(
        "budget",
        OrNone(Whole(1)),
        "total number of evaluations; by default the strategies' own rules end the loop. "
        "Set it if a rule may never be met, such as a minimum number of ones",
    ),
    ConfigOption(
        "fill",
        Flag(),
        "whether idle workers evaluate [points that fill the space](#workers-that-never-wait)",
        True,
    ),
    ConfigOption("retries", Whole(), "number of retries of a point whose evaluation failed", 1),
    ConfigOption(
        "seed", OrNone(Whole()), "seed of all random numbers; by default the experiment's number"
    ),
    ConfigOption(
        "time_limit",
        Number("seconds", above=0),
        "time limit of one evaluation. A farm that serves the model for this run kills the "
        "evaluation then; a farm that was already running does so only after its own "
        "`--time-limit`",
    ),
    ConfigOption(
        "max_time", Number("seconds", above=0), "time after which the loop requests no more points"
    ),
    ConfigOption(
        "seed_data",
        OrNone(Names("sweep files such as week.h5 or [a.h5, b.h5]")),
        "files whose evaluations the experiment [begins with](#evaluations-that-are-there); "
        "relative to the folder of the configuration",
    ),
    ConfigOption(
        "input.<input>",
        Text("a number or a parameter"),
        "value of this input of the model, or of one of its entries, `input.theta[2]`; by "
        "position `input.in0[2]`",
        Computed("parameter of that name"),
    ),
    ConfigOption("config.<key>", Text("JSON or a text"), "value of this key in the model's config"),
    ConfigOption(
        "outcome.<outcome>",
        Text("an expression over the model's outputs"),
        "value of the outcome",
        Computed("output of that name, or the only one, if it is one number"),
    ),
    since=OWN,
)
