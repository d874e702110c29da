"""Errors as JSON, in farm's own form and read from other servers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from farm.encoding.errors import ERRORS, encode_error
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    UnsupportedFeature,
)


def test_every_error_has_a_type_and_a_status() -> None:
    assert set(ERRORS) == set(FarmError.kinds.values())
    for kind in FarmError.kinds.values():
        status, body = encode_error(kind("expected 3, got 2", detail="Traceback: secret"))
        assert 400 <= status < 600
        expected = {"error": {"type": ERRORS[kind][0], "message": "expected 3, got 2"}}
        assert json.loads(body) == expected


def test_the_four_errors_of_the_protocol_have_its_names_and_statuses() -> None:
    for kind, name, status in [
        (ModelNotFound, "ModelNotFound", 400),
        (UnsupportedFeature, "UnsupportedFeature", 400),
        (InvalidInput, "InvalidInput", 400),
        (InvalidRequest, "InvalidInput", 400),
        (InvalidOutput, "InvalidOutput", 500),
    ]:
        assert ERRORS[kind] == (name, status)


def test_the_manual_lists_every_error() -> None:
    manual = Path(__file__).parents[2].joinpath("docs", "umbridge.md").read_text()
    listed = re.findall(r"^\| (\w+) \| (\d{3}) \|", manual, re.MULTILINE)
    assert {(kind, int(status)) for kind, status in listed} == set(ERRORS.values())


def test_a_message_that_is_no_unicode_is_still_answered() -> None:
    status, body = encode_error(ModelFailed("file \udcff.dat"))
    assert (status, json.loads(body)["error"]["message"]) == (500, "file ?.dat")
