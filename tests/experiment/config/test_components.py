"""Generators, acquisition functions and surrogates of strategies: lookup, aliases and checks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment.config.components import (
    ACQUISITIONS,
    GENERATORS,
    LOOK_AHEAD,
    OBJECTIVES,
    PROBIT_BY_DEFAULT,
    REFUSED,
    SURROGATES,
    Classes,
    Components,
)
from farm.experiment.config.definition import (
    MODEL_FREE,
    OF_PROBABILITY,
    OPTIMIZING,
    POINT_LISTS,
    Generator,
    Outcome,
    OutcomeKind,
    Surrogate,
)
from farm.experiment.config.ini import read_document

BINARY = Outcome("b", OutcomeKind.BINARY)
CONTINUOUS = Outcome("c", OutcomeKind.CONTINUOUS)
OPTIMIZE = "generator = OptimizeAcqfGenerator\nmodel = GPRegressionModel\n"
INDEPENDENT = """
[s]
generator = IndependentOptimizeAcqfGenerator
model = IndependentGPsModel
[IndependentOptimizeAcqfGenerator]
generators = [gb, gc]
[IndependentGPsModel]
models = [mb, mc]
[gb]
class = OptimizeAcqfGenerator
acqf = MCLevelSetEstimation
[gc]
class = OptimizeAcqfGenerator
acqf = qUpperConfidenceBound
[mb]
class = GPClassificationModel
[mc]
class = GPRegressionModel
"""


def read(
    text: str, outcomes: Sequence[Outcome] = (CONTINUOUS,), stimuli: int = 1
) -> tuple[Generator, Surrogate | None, list[str]]:
    document = read_document(text)
    warnings: list[str] = []
    components = Components(document, outcomes, stimuli, warnings)
    surrogate = components.surrogate(document.section("s"))
    return components.generator(document.section("s"), surrogate), surrogate, warnings


def generator(text: str, outcomes: Sequence[Outcome] = (CONTINUOUS,)) -> Generator:
    return read(text, outcomes)[0]


def test_a_generator_without_a_model() -> None:
    found, surrogate, warnings = read("[s]\ngenerator = SobolGenerator\n[SobolGenerator]\nseed = 3")
    assert found == Generator("SobolGenerator", "SobolGenerator", {"seed": "3"})
    assert (surrogate, warnings) == (None, [])


def test_the_floor_may_stand_in_the_objectives_section() -> None:
    text = (
        f"[common]\nfloor = 0.1\n[s]\n{OPTIMIZE}acqf = EAVC\n"
        "[EAVC]\nobjective = FloorProbitObjective\n[FloorProbitObjective]\nfloor = 0.25"
    )
    acquisition = generator(text).acquisition
    assert acquisition is not None
    assert acquisition.options["floor"] == "0.25"


@pytest.mark.parametrize(
    ("acqf", "model", "objective", "expected"),
    [
        ("MCLevelSetEstimation", "GPClassificationModel", "", "ProbitObjective"),
        ("MCLevelSetEstimation", "GPClassificationModel", "none", "ProbitObjective"),
        ("MCPosteriorVariance", "GPClassificationModel", "", "ProbitObjective"),
        ("MCPosteriorVariance", "GPClassificationModel", "IdentityMCObjective", None),
        ("MCLevelSetEstimation", "GPClassificationModel", "FloorLogitObjective", None),
        ("MCLevelSetEstimation", "GPRegressionModel", "", ""),
        ("qLogNoisyExpectedImprovement", "GPClassificationModel", "", ""),
        ("qUpperConfidenceBound", "GPClassificationModel", "", ""),
    ],
)
def test_level_sets_and_variances_are_those_of_probabilities_unless_said(
    acqf: str, model: str, objective: str, expected: str | None
) -> None:
    optimize = OPTIMIZE.replace("GPRegressionModel", model)
    text = f"[s]\n{optimize}acqf = {acqf}\n[{acqf}]\nobjective = {objective}"
    acquisition = generator(text, [BINARY]).acquisition
    assert acquisition is not None
    assert acquisition.objective == (objective if expected is None else expected)


def test_a_model_may_be_named_where_no_generator_needs_one() -> None:
    _, surrogate, _ = read("[s]\ngenerator = SobolGenerator\nmodel = GPRegressionModel")
    assert surrogate is not None
    assert read("[common]\nmodel = none\n[s]\ngenerator = SobolGenerator")[1] is None


@pytest.mark.parametrize(
    "text",
    [
        f"[s]\n{OPTIMIZE}[OptimizeAcqfGenerator]\nacqf = EAVC",
        f"[s]\n{OPTIMIZE}acqf = EAVC",
        f"[common]\nacqf = EAVC\n[s]\n{OPTIMIZE}",
        f"[common]\nacqf = LocalMI\n[s]\n{OPTIMIZE}acqf = EAVC",
        f"[s]\n{OPTIMIZE}acqf = LocalMI\n[OptimizeAcqfGenerator]\nacqf = EAVC",
        f"[s]\n{OPTIMIZE}[OptimizeAcqfGenerator]\nacqf = mine\n[mine]\nclass = EAVC",
        "[common]\ngenerator = OptimizeAcqfGenerator\nmodel = GPRegressionModel\nacqf = EAVC\n[s]",
    ],
)
def test_where_the_acquisition_function_is_looked_up(text: str) -> None:
    acquisition = generator(text).acquisition
    assert acquisition is not None
    assert acquisition.kind == "EAVC"


def test_options_are_those_of_the_alias_and_of_common() -> None:
    text = f"""
[common]
target = 0.6
seed = 1
[s]
{OPTIMIZE.replace("OptimizeAcqfGenerator", "mine")}
[mine]
class = MixedOptimizeAcqfGenerator
acqf = mine_too
[mine_too]
class = MCLevelSetEstimation
objective = third
beta = 2
[third]
class = ProbitObjective
[MCLevelSetEstimation]
beta = 3
"""
    found = generator(text)
    assert (found.kind, found.name) == ("MixedOptimizeAcqfGenerator", "mine")
    acquisition = found.acquisition
    assert acquisition is not None
    assert (acquisition.kind, acquisition.name) == ("MCLevelSetEstimation", "mine_too")
    assert (acquisition.options["beta"], acquisition.options["target"]) == ("2", "0.6")
    assert acquisition.objective == "ProbitObjective"


def test_one_generator_and_one_model_for_each_outcome() -> None:
    found, surrogate, _ = read(INDEPENDENT, [BINARY, CONTINUOUS])
    kinds = [part.acquisition.kind for part in found.parts if part.acquisition]
    assert kinds == ["MCLevelSetEstimation", "qUpperConfidenceBound"]
    assert surrogate is not None
    assert [part.kind for part in surrogate.parts] == ["GPClassificationModel", "GPRegressionModel"]
    assert [part.name for part in surrogate.parts] == ["mb", "mc"]


def test_older_names_are_said() -> None:
    found, _, warnings = read(
        "[s]\ngenerator = PairwiseSobolGenerator\n[PairwiseSobolGenerator]\nseed=1"
    )
    assert (found.kind, found.options["seed"]) == ("SobolGenerator", "1")
    assert warnings == ["[s] generator = PairwiseSobolGenerator is an older name of SobolGenerator"]


def test_relatives_are_said() -> None:
    found, _, warnings = read(f"[s]\n{OPTIMIZE}acqf = GlobalSUR")
    assert found.acquisition is not None
    assert (found.acquisition.kind, found.acquisition.name) == ("GlobalMI", "GlobalSUR")
    assert "GlobalSUR is not offered; farm uses the related GlobalMI instead" in warnings[0]


EAVC = f"[s]\n{OPTIMIZE}acqf = EAVC\n"
EAVC_OF_YES_OR_NO = EAVC.replace("Regression", "Classification")
SOBOL = "[s]\ngenerator = SobolGenerator\n"


def refusal(text: str, outcomes: Sequence[Outcome] = (CONTINUOUS,), stimuli: int = 1) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(text, outcomes, stimuli)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[s]", "[s] generator is missing; expected a generator such as SobolGenerator"),
        ("[s]\ngenerator = Sobol", "[s] generator = Sobol is not a known generator; expected one"),
        ("[s]\ngenerator = a\n[a]\nclass = b\n[b]\nclass = a", "`class` refers to itself"),
        ("[s]\ngenerator = a\n[a]\nclass = X", "[s] generator = X is not a known generator"),
        ("[s]\ngenerator = OptimizeAcqfGenerator", "[s] model is missing; OptimizeAcqfGenerator"),
        (f"[s]\n{OPTIMIZE}", "acqf is missing in [OptimizeAcqfGenerator], [s] and [common]"),
        (f"[s]\n{OPTIMIZE}acqf = X", "[s] acqf = X is not a known acquisition function"),
        (f"[common]\nacqf = X\n[s]\n{OPTIMIZE}", "[common] acqf = X is not a known acquisition"),
        (
            f"[s]\n{OPTIMIZE}[OptimizeAcqfGenerator]\nacqf = X",
            "[OptimizeAcqfGenerator] acqf = X is",
        ),
        (f"{EAVC}[EAVC]\nobjective = X", "[EAVC] objective = X is not a known objective"),
        (f"{EAVC}[EAVC]\ntarget = high", "[EAVC] target = high: expected a finite number"),
        (f"[common]\nbeta = -1\n{EAVC}", "[common] beta = -1: expected a number, 0 or more"),
        (
            f"{EAVC}[EAVC]\nfloor = 1",
            "[EAVC] floor = 1: expected a probability, 0 or more and less",
        ),
        (
            f"{EAVC}[EAVC]\nobjective = FloorProbitObjective\n[FloorProbitObjective]\nfloor = -1",
            "[FloorProbitObjective] floor = -1: expected a probability",
        ),
        (f"{EAVC}[EAVC]\nquery_set_size = 0", "query_set_size = 0: expected a whole number, 1 or"),
        (
            EAVC_OF_YES_OR_NO,
            "is GPClassificationModel, but the outcome 'c' is continuous; expected",
        ),
        (
            INDEPENDENT.replace("= IndependentGPsModel", "= GPRegressionModel"),
            "model = GPRegressionModel: expected IndependentGPsModel, as Independent",
        ),
        (
            f"{SOBOL}[SobolGenerator]\nseed = x",
            "[SobolGenerator] seed = x: expected a whole number",
        ),
    ],
)
def test_refusals_with_one_outcome(text: str, expected: str) -> None:
    assert expected in refusal(text)


def test_what_does_not_fit_a_yes_or_no_or_a_pair() -> None:
    high = refusal(f"{EAVC_OF_YES_OR_NO}[EAVC]\ntarget = 75", [BINARY])
    assert high == "[EAVC] target = 75: expected a probability between 0 and 1"
    assert "but stimuli_per_trial is 2; expected PairwisePro" in refusal(EAVC, [BINARY], 2)
    pairs = refusal(f"{SOBOL}model = PairwiseProbitModel", [BINARY])
    assert "but stimuli_per_trial is 1; expected a model of single stimuli" in pairs


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[mb, mc]", "[mb]", "models = [mb]: expected 2 names, one model for each outcome"),
        ("[gb, gc]", "[gb]", "generators = [gb]: expected 2 names, one generator for each outcome"),
        ("[mb, mc]", "[mb, IndependentGPsModel]", "models of one outcome each"),
        ("[gb, gc]", "[gb, SobolGenerator]", "generators of the class OptimizeAcqfGenerator"),
        (
            *("= IndependentOptimizeAcqfGenerator", "= OptimizeAcqfGenerator"),
            "expected IndependentOptimizeAcqfGenerator, as IndependentGPsModel is used",
        ),
        (
            *("= IndependentGPsModel", "= GPRegressionModel"),
            "[s] model = GPRegressionModel: expected IndependentGPsModel, as there are 2",
        ),
    ],
)
def test_refusals_with_two_outcomes(old: str, new: str, expected: str) -> None:
    assert expected in refusal(INDEPENDENT.replace(old, new), [BINARY, CONTINUOUS])


@pytest.mark.parametrize("size", ["0", "5000", "x"])
def test_sizes_of_hypercubes_are_checked(size: str) -> None:
    text = "[s]\ngenerator = LatinHypercubeGenerator\n[LatinHypercubeGenerator]\nsize = "
    assert generator(text + "4096").options == {"size": "4096"}
    with pytest.raises(InvalidInput, match=rf"\[LatinHypercubeGenerator\] size = {size}: expected"):
        generator(text + size)


def test_tuning_options_are_not_looked_at() -> None:
    text = (
        f"[s]\n{OPTIMIZE}acqf = EAVC\n[OptimizeAcqfGenerator]\nrestarts = many\nuse_gpu = maybe\n"
    )
    text += "[GPRegressionModel]\nmean_covar_factory = DefaultMeanCovarFactory\ninducing_size = x"
    found, surrogate, warnings = read(text)
    assert found.options["restarts"] == "many"
    assert surrogate is not None
    assert warnings == []


TABLES = {"generator": GENERATORS, "model": SURROGATES, "acqf": ACQUISITIONS, "obj": OBJECTIVES}


@pytest.mark.parametrize(
    ("table", "name", "other"),
    [
        ("generator", "PairwiseSobolGenerator", "SobolGenerator"),
        ("generator", "PairwiseOptimizeAcqfGenerator", "OptimizeAcqfGenerator"),
        ("acqf", "GlobalSUR", "GlobalMI"),
        ("acqf", "ApproxGlobalSUR", "GlobalMI"),
        ("acqf", "LocalSUR", "LocalMI"),
    ],
)
def test_names_that_mean_another(table: str, name: str, other: str) -> None:
    found, note = TABLES[table].find(name, "[s] option")
    assert found == other
    assert note.startswith(f"[s] option = {name} is ")
    assert other in note


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *[("generator", n) for n in ("IntensityAwareSemiPGenerator", "EpsilonGreedyGenerator")],
        *[("generator", n) for n in ("AcqfThompsonSamplerGenerator", "AcqfGridSearchGenerator")],
        *[("generator", n) for n in ("MonotonicThompsonSamplerGenerator", "MonotonicRejection")],
        *[("model", n) for n in ("OrdinalGPModel", "MonotonicProjectionGP", "HadamardSemiPModel")],
        *[("model", n) for n in ("SemiParametricGPModel", "MonotonicRejectionGP")],
        *[("acqf", n) for n in ("AnalyticExpectedUtilityOfBestOption", "MonotonicMCLSE")],
        *[("obj", n) for n in ("FloorGumbelObjective", "SemiPProbabilityObjective")],
    ],
)
def test_names_that_are_refused_say_what_to_use(table: str, name: str) -> None:
    names = TABLES[table]
    with pytest.raises(UnsupportedFeature) as caught:
        names.find(name, "[s] option")
    start, _, instead = str(caught.value).partition("; use ")
    assert start == f"[s] option = {name} is not offered"
    assert any(known in instead for known in names.known)


@pytest.mark.parametrize("names", TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("name", ["NoSuch", "", "sobolgenerator", "Monotonie", "x" * 1000])
def test_names_that_are_none_say_which_there_are(names: Classes, name: str) -> None:
    with pytest.raises(
        InvalidInput, match=f"is not a known {names.role}; expected one of "
    ) as caught:
        names.find(name, "[s] option")
    assert all(known in str(caught.value) for known in names.known)
    assert len(str(caught.value)) < 500


def test_the_tables_agree() -> None:
    for names in TABLES.values():
        used = {instead for _, sentence, instead in names.others if sentence != REFUSED}
        assert set(names.known).issuperset(used)
    assert MODEL_FREE.issuperset(POINT_LISTS)
    assert set(GENERATORS.known).issuperset(MODEL_FREE)
    assert (set(GENERATORS.known) - MODEL_FREE).issuperset(OPTIMIZING)
    assert set(ACQUISITIONS.known).issuperset(LOOK_AHEAD | PROBIT_BY_DEFAULT)
    assert set(OBJECTIVES.known).issuperset(OF_PROBABILITY)
