"""Outputs in the form that a request asks for."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Result
from farm.errors import InvalidInput
from farm.protocols.kserve.answers import presented, takes_long
from farm.protocols.kserve.request import OutputForm, Wish, WishedOutput


def output(form: OutputForm | None, datatype: str = "BYTES") -> WishedOutput:
    return WishedOutput(0, "y", datatype, False, form=form)


def test_without_a_form_it_is_the_output() -> None:
    array = np.arange(3.0)
    assert presented(array, output(None, "FP64")) is array


def test_a_content_type() -> None:
    array = np.array([b"\xff", b"a"], object)
    assert presented(array, output(OutputForm("base64"))).tolist() == [b"/w==", b"YQ=="]
    with pytest.raises(InvalidInput, match="output 'y' holds at position 0"):
        presented(array, output(OutputForm("str")))


def test_raw_copies_are_quick_and_text_is_not() -> None:
    result = Result((np.zeros(100_000),))
    plain, formed = output(None, "FP64"), output(OutputForm("np"), "FP64")
    assert not takes_long(Wish("m", None, [plain]), result, raw=True)
    assert takes_long(Wish("m", None, [plain]), result, raw=False)
    assert takes_long(Wish("m", None, [plain, formed]), result, raw=True)


def test_many_classes_take_long() -> None:
    result = Result((np.zeros((3000, 4)),))
    for classes, is_long in ((1, False), (2, True), (2**63, True)):
        wish = Wish("m", None, [output(OutputForm("", classes, 1))])
        assert takes_long(wish, result, raw=True) is is_long
    one = Result((np.zeros(5000),))
    assert not takes_long(Wish("m", None, [output(OutputForm("", 4096, 1))]), one, raw=True)
    assert takes_long(Wish("m", None, [output(OutputForm("", 4097, 1))]), one, raw=True)


def test_classes_come_before_the_content_type() -> None:
    form = OutputForm("base64", 1, 1, ("a", "b"))
    assert presented(np.array([[1, 2], [4, 3]]), output(form)).tolist() == [
        [b"MjoxOmI="],
        [b"NDowOmE="],
    ]
