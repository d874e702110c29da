"""The dialects: names, errors by kind, and the option that selects one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farm.call import ModelInfo, Operation, TensorInfo
from farm.errors import (
    FarmError,
    InvalidInput,
    ModelNotFound,
    Unavailable,
    UnsupportedFeature,
)
from farm.protocols.kserve.dialect import DIALECTS, OPEN, TritonDialect, read_options
from farm.protocols.kserve.metadata import EXTENSIONS
from farm.protocols.kserve.request import InferInput, InferRequest
from farm.settings import Settings, SettingsError
from farm.version import __version__

TRITON = DIALECTS["triton"]
INFO = ModelInfo("twice", (TensorInfo("x", (3,), "float64"),), (TensorInfo("y", (3,), "float64"),))


def request(shape: tuple[int, ...] = (1, 3), name: str = "x") -> InferRequest:
    return InferRequest("twice", [InferInput(name, "FP64", shape, np.zeros(shape))])


def test_the_option_names_a_dialect() -> None:
    assert read_options({"kserve_dialect": "open"}, Settings()) is OPEN
    assert isinstance(read_options({"kserve_dialect": "triton"}, Settings()), TritonDialect)
    with pytest.raises(SettingsError, match="'oip'; expected one of open, triton"):
        read_options({"kserve_dialect": "oip"}, Settings())


def test_the_server_has_a_name_a_version_and_the_extensions_that_it_has() -> None:
    assert OPEN.server_metadata()["name"] == "farm"
    told = TRITON.server_metadata()
    assert told["name"] == "triton"
    assert told["version"].endswith(f"+farm.{__version__}")
    numbers = told["version"].partition("+")[0].split(".")
    assert len(numbers) == 3
    assert all(part.isdigit() for part in numbers), "clients compare versions of three numbers"
    unnamed = {"generate", "sequence(string_id)"}
    assert set(told["extensions"]) == set(EXTENSIONS) - unnamed, "Triton has no such names"


@pytest.mark.parametrize(
    ("version", "kind", "text"),
    [
        ("2", ModelNotFound, "Request for unknown model: 'twice' version 2 is not found"),
        (
            "wrong",
            InvalidInput,
            "get model version from specified version string 'wrong'",
        ),
        ("-1", InvalidInput, "invalid model version specified '-1'"),
        ("9" * 30, ModelNotFound, "is not found"),
    ],
)
def test_triton_versions(version: str, kind: type[FarmError], text: str) -> None:
    for right in ("1", " 1", "01", "1st", ""):  # what begins with the number
        assert TRITON.version_of(right) == (right and "1")
    with pytest.raises(kind) as caught:
        raise TRITON.unknown_version("twice", TRITON.version_of(version), ["1"])
    assert text in caught.value.message


def test_triton_models() -> None:
    of = "Request for unknown model: "
    for tell, kind in ((ModelNotFound, InvalidInput), (Unavailable, Unavailable)):
        error = TRITON.unknown_model("no", ["twice"], tell)
        assert (type(error), error.message) == (kind, f"{of}'no' is not found")
    error = TRITON.unloaded_model("twice")
    assert type(error) is ModelNotFound
    assert error.message == f"{of}'twice' has no available versions"


def test_wrong_requests_alone_are_told_in_the_words_of_the_dialect() -> None:
    (ours, _), (theirs, _) = OPEN.call_of(request(), INFO), TRITON.call_of(request(), INFO)
    assert ours.inputs[0].shape == theirs.inputs[0].shape == (3,)
    with pytest.raises(InvalidInput, match="there is no input 'z'"):
        OPEN.call_of(request(name="z"), INFO)
    with pytest.raises(InvalidInput, match="unexpected inference input 'z' for model 'twice'"):
        TRITON.call_of(request(name="z"), INFO)


def test_faults_that_triton_does_not_know_keep_their_text() -> None:
    shapes = {"a": (2, 1), "b": (1,)}
    many = [InferInput(name, "FP64", shape, np.zeros(shape)) for name, shape in shapes.items()]
    two = replace(INFO, inputs=(TensorInfo("a", (1,)), TensorInfo("b", (1,))))
    with pytest.raises(InvalidInput, match="Expected \\[-1,1\\], got \\[1\\]"):
        TRITON.call_of(InferRequest("twice", many), two)
    flagged = request()._replace(parameters={"binary_data_output": "yes"})
    with pytest.raises(InvalidInput, match="expected true or false"):
        TRITON.call_of(flagged, INFO)
    other = replace(INFO, operations=frozenset({Operation.GRADIENT}))
    with pytest.raises(UnsupportedFeature, match="has no evaluate"):
        TRITON.call_of(request(), other)
