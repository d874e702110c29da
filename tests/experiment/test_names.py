"""The names that configs use: every one of them is done, replaced or refused with a sentence."""

from __future__ import annotations

import pytest

from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment.names import (
    ACQUISITIONS,
    GENERATORS,
    LOOK_AHEAD,
    MODEL_FREE,
    OBJECTIVES,
    OF_PROBABILITY,
    OPTIMIZING,
    SURROGATES,
    WITH_AN_END,
    Names,
)

TABLES = {"generator": GENERATORS, "model": SURROGATES, "acqf": ACQUISITIONS, "obj": OBJECTIVES}


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *[("generator", n) for n in ("SobolGenerator", "OptimizeAcqfGenerator")],
        *[("generator", n) for n in ("IndependentOptimizeAcqfGenerator", "ManualGenerator")],
        *[("generator", n) for n in ("RandomGenerator", "SampleAroundPointsGenerator")],
        *[("generator", n) for n in ("MixedOptimizeAcqfGenerator", "HaltonGenerator")],
        ("generator", "LatinHypercubeGenerator"),
        *[("model", n) for n in ("GPClassificationModel", "GPRegressionModel")],
        *[("model", n) for n in ("PairwiseProbitModel", "IndependentGPsModel")],
        *[("acqf", n) for n in ("MCLevelSetEstimation", "qLogNoisyExpectedImprovement", "EAVC")],
        *[("acqf", n) for n in ("qNoisyExpectedImprovement", "MCPosteriorVariance", "GlobalMI")],
        *[("acqf", n) for n in ("PairwiseMCPosteriorVariance", "qUpperConfidenceBound")],
        *[("acqf", n) for n in ("qNegIntegratedPosteriorVariance", "LocalMI")],
        ("acqf", "BernoulliMCMutualInformation"),
        *[("obj", n) for n in ("ProbitObjective", "IdentityMCObjective")],
        *[("obj", n) for n in ("FloorProbitObjective", "FloorLogitObjective")],
    ],
)
def test_names_that_are_done(table: str, name: str) -> None:
    assert TABLES[table].find(name, "[s] option") == (name, "")


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
def test_names_that_are_none_say_which_there_are(names: Names, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"is no {names.what}; expected one of ") as caught:
        names.find(name, "[s] option")
    assert all(known in str(caught.value) for known in names.known)
    assert len(str(caught.value)) < 500


def test_the_tables_agree() -> None:
    for names in TABLES.values():
        assert set(names.known).issuperset({*names.older.values(), *names.relatives.values()})
    assert MODEL_FREE.issuperset(WITH_AN_END)
    assert set(GENERATORS.known).issuperset(MODEL_FREE)
    assert (set(GENERATORS.known) - MODEL_FREE).issuperset(OPTIMIZING)
    assert set(ACQUISITIONS.known).issuperset(LOOK_AHEAD)
    assert set(OBJECTIVES.known).issuperset(OF_PROBABILITY)
