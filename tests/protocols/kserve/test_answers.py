"""Outputs in the form that a request asks for."""

from __future__ import annotations

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.protocols.kserve.answers import only_copies, presented
from farm.protocols.kserve.request import OutputForm, Wish, WishedOutput


def output(form: OutputForm | None, datatype: str = "BYTES") -> WishedOutput:
    return WishedOutput(0, "y", datatype, False, form)


def test_without_a_form_it_is_the_output() -> None:
    array = np.arange(3.0)
    assert presented(array, output(None, "FP64")) is array


def test_a_content_type() -> None:
    array = np.array([b"\xff", b"a"], object)
    assert presented(array, output(OutputForm("base64"))).tolist() == [b"/w==", b"YQ=="]
    with pytest.raises(InvalidInput, match="output 'y' holds at position 0"):
        presented(array, output(OutputForm("str")))


def test_only_raw_outputs_without_a_form_are_copies() -> None:
    plain, formed = output(None), output(OutputForm("np"))
    assert only_copies(Wish("m", None, [plain]), True)
    assert not only_copies(Wish("m", None, [plain]), False)
    assert not only_copies(Wish("m", None, [plain, formed]), True)


def test_classes_come_before_the_content_type() -> None:
    form = OutputForm("base64", 1, 1, ("a", "b"))
    assert presented(np.array([[1, 2], [4, 3]]), output(form)).tolist() == [
        [b"MjoxOmI="],
        [b"NDowOmE="],
    ]
