"""The names of generators, surrogates, acquisition functions and objectives that configs use. Pure.

Each table says what is known; what is not is refused with a sentence that says what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from farm.errors import InvalidInput, UnsupportedFeature

SOBOL = "SobolGenerator"
RANDOM = "RandomGenerator"
HALTON = "HaltonGenerator"
LATIN_HYPERCUBE = "LatinHypercubeGenerator"
MANUAL = "ManualGenerator"
SAMPLE_AROUND = "SampleAroundPointsGenerator"
OPTIMIZE = "OptimizeAcqfGenerator"
MIXED = "MixedOptimizeAcqfGenerator"
INDEPENDENT = "IndependentOptimizeAcqfGenerator"

WITH_AN_END = frozenset({MANUAL, SAMPLE_AROUND})
"""Generators that give a list of points, and nothing after it."""
MODEL_FREE = frozenset({SOBOL, RANDOM, HALTON, LATIN_HYPERCUBE}) | WITH_AN_END
"""Generators that need no surrogate and no data."""
OPTIMIZING = frozenset({OPTIMIZE, MIXED})
"""Generators that maximise one acquisition function."""

REGRESSION = "GPRegressionModel"
CLASSIFICATION = "GPClassificationModel"
PAIRWISE = "PairwiseProbitModel"
INDEPENDENT_MODELS = "IndependentGPsModel"

LOOK_AHEAD = frozenset({"EAVC", "GlobalMI", "LocalMI"})
"""Acquisition functions of the set where a probability is above the target."""

PROBIT = "ProbitObjective"
OF_PROBABILITY = frozenset({PROBIT, "FloorProbitObjective", "FloorLogitObjective"})
"""Objectives that make probabilities of the latent function."""
LOOK_AT_PROBABILITY = frozenset({"MCLevelSetEstimation", "MCPosteriorVariance"})
"""Acquisition functions whose objective is the probit one where none is named."""


def _none() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Names:
    """What one kind of component may be called.

    known: names that are done. older: other spellings of known ones. relatives: names for which
    another is taken. refused: names that are known and not offered, `*` for any ending; with what
    to use in their place.
    """

    what: str
    known: Sequence[str]
    older: Mapping[str, str] = field(default_factory=_none)
    relatives: Mapping[str, str] = field(default_factory=_none)
    refused: Mapping[str, str] = field(default_factory=_none)

    def find(self, name: str, where: str) -> tuple[str, str]:
        """The known name that `name` means, and what is to be said about it or "".

        Raises UnsupportedFeature for refused names, InvalidInput for unknown ones.
        """
        if name in self.known:
            return name, ""
        if name in self.older:
            return self.older[name], f"{where} = {name} is an older name of {self.older[name]}"
        if name in self.relatives:
            other = self.relatives[name]
            return other, f"{where} = {name} is not offered; {other}, its relative, takes its place"
        for pattern, instead in self.refused.items():
            if name == pattern or (pattern[-1] == "*" and name.startswith(pattern[:-1])):
                raise UnsupportedFeature(f"{where} = {name} is not offered; use {instead}")
        offered = ", ".join(self.known)
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        raise InvalidInput(f"{where} = {shown} is no {self.what}; expected one of {offered}")


GENERATORS = Names(
    "generator",
    known=(
        *(SOBOL, OPTIMIZE, INDEPENDENT, MIXED, MANUAL, RANDOM, SAMPLE_AROUND),
        *(HALTON, LATIN_HYPERCUBE),
    ),
    older={"PairwiseSobolGenerator": SOBOL, "PairwiseOptimizeAcqfGenerator": OPTIMIZE},
    refused={
        "IntensityAwareSemiPGenerator": OPTIMIZE,
        "AcqfThompsonSamplerGenerator": OPTIMIZE,
        "AcqfGridSearchGenerator": OPTIMIZE,
        "EpsilonGreedyGenerator": OPTIMIZE,
        "Monotonic*": OPTIMIZE,
    },
)

SURROGATES = Names(
    "model",
    known=(CLASSIFICATION, REGRESSION, PAIRWISE, INDEPENDENT_MODELS),
    refused={
        "OrdinalGPModel": f"{REGRESSION} with outcome_types = [continuous]",
        "Monotonic*": CLASSIFICATION,
        "SemiP*": CLASSIFICATION,
        "HadamardSemiPModel": CLASSIFICATION,
    },
)

ACQUISITIONS = Names(
    "acquisition function",
    known=(
        *("MCLevelSetEstimation", "qLogNoisyExpectedImprovement", "EAVC"),
        *("qNoisyExpectedImprovement", "MCPosteriorVariance", "PairwiseMCPosteriorVariance"),
        *("GlobalMI", "LocalMI", "qUpperConfidenceBound", "qNegIntegratedPosteriorVariance"),
        "BernoulliMCMutualInformation",
    ),
    relatives={"GlobalSUR": "GlobalMI", "ApproxGlobalSUR": "GlobalMI", "LocalSUR": "LocalMI"},
    refused={
        "AnalyticExpectedUtilityOfBestOption": "qLogNoisyExpectedImprovement",
        "Monotonic*": "MCLevelSetEstimation",
    },
)

OBJECTIVES = Names(
    "objective",
    known=(PROBIT, "IdentityMCObjective", "FloorProbitObjective", "FloorLogitObjective"),
    refused={"FloorGumbelObjective": "FloorProbitObjective", "SemiP*": "ProbitObjective"},
)
