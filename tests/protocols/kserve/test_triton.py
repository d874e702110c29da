"""Triton's texts for requests that do not fit, which its own tests and clients compare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.protocols.kserve.request import InferInput, InferRequest, RequestedOutput
from farm.protocols.kserve.triton import LONGEST_NAME, Sent, cut, fault_of, of_request, sizes_fault

INFO = ModelInfo(
    "simple",
    (TensorInfo("INPUT0", (16,), "int32"), TensorInfo("INPUT1", (16,), "int32")),
    (TensorInfo("OUTPUT0", (16,), "int32"),),
)


def given(name: str, shape: tuple[int, ...] = (1, 16), datatype: str = "INT32") -> InferInput:
    return InferInput(name, datatype, shape, np.zeros(shape, np.int32))


def fault(*inputs: InferInput, request_id: str | None = None, **more: Any) -> str:
    return fault_of(InferRequest("simple", inputs, id=request_id, **more), INFO)


BOTH = given("INPUT0"), given("INPUT1")


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (
            BOTH[:1],
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'simple'. Got "
            "input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all "
            "required input(s).",
        ),
        (
            (),
            "[request id: <id_unknown>] expected 2 inputs but got 0 inputs for model 'simple'. Got "
            "input(s) [], but missing required input(s) ['INPUT0','INPUT1']. Please provide all "
            "required input(s).",
        ),
        (
            (given("INPUT0"), given("Z")),
            "unexpected inference input 'Z' for model 'simple'",
        ),
        (
            (given("INPUT0"), given("INPUT0")),
            "[request id: <id_unknown>] input 'INPUT0' already exists in request",
        ),
        (
            (given("INPUT0", (2, 16)), given("INPUT1", (1, 16))),
            "[request id: <id_unknown>] input 'INPUT1' batch size does not match other inputs for "
            "'simple'",
        ),
        (
            (given("INPUT0"), given("INPUT1", datatype="FP32")),
            "[request id: <id_unknown>] inference input 'INPUT1' data-type is 'FP32', but model "
            "'simple' expects 'INT32'",
        ),
        (
            (given("INPUT0", (1, 15)), given("INPUT1")),
            "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'simple'. "
            "Expected [-1,16], got [1,15].",
        ),
        (
            (given("INPUT0", (1, 1, 16)), given("INPUT1")),
            "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'simple'. "
            "Expected [-1,16], got [1,1,16].",
        ),
    ],
)
def test_inputs(inputs: tuple[InferInput, ...], text: str) -> None:
    assert fault(*inputs) == text


def test_right_requests_have_no_fault_even_without_a_batch_axis() -> None:
    assert fault(*BOTH) == ""
    assert fault(given("INPUT0", (16,)), given("INPUT1", (16,))) == ""
    text = "Expected [-1,16], got [16]"
    assert text in fault(given("INPUT0", (16,)), given("INPUT1", (1, 16)))
    assert "got [15]" in fault(given("INPUT0", (15,)), given("INPUT1", (16,)))
    varies = replace(INFO, inputs=(TensorInfo("INPUT0", (-1,), "int32"),))
    assert fault_of(InferRequest("simple", [given("INPUT0", (1, 5))]), varies) == ""


def test_outputs_are_checked_before_inputs() -> None:
    text = fault(outputs=[RequestedOutput("Z")])
    assert text == "unexpected inference output 'Z' for model 'simple'"
    twice = [RequestedOutput("OUTPUT0"), RequestedOutput("OUTPUT0")]
    assert "output 'OUTPUT0' already exists in request" in fault(*BOTH, outputs=twice)
    assert fault(request_id="seven").startswith("[request id: seven] expected 2 inputs")
    assert of_request(None) == of_request("") == "[request id: <id_unknown>] "


def test_sizes_in_bytes() -> None:
    right = [Sent("x", "INT32", (2, 8), 64), Sent("y", "INT32", (2, 8), 16, in_elements=True)]
    assert sizes_fault(None, "m", [*right, Sent("z", "BYTES", (2,), 1)]) == ""
    assert sizes_fault("7", "m", [*right, Sent("x", "INT32", (2, 8), 60)]) == (
        "[request id: 7] input byte size mismatch for input 'x' for model 'm'. Expected 64, got 60"
    )


def test_long_names_are_cut() -> None:
    assert cut("a" * LONGEST_NAME) == "a" * LONGEST_NAME
    assert len(cut("a" * (LONGEST_NAME + 1))) == LONGEST_NAME
    assert len(fault(*(given(f"{i}" * 10_000) for i in range(1000)))) < 30 * LONGEST_NAME
