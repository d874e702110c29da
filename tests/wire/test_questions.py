"""Questions and what is told: both arrive as they were sent."""

from __future__ import annotations

import pytest

from farm.errors import InvalidRequest, UnsupportedFeature
from farm.wire import messages as wire
from farm.wire.messages import Kind
from farm.wire.questions import (
    AskedQuestion,
    decode_question,
    decode_told,
    encode_question,
    encode_told,
)


@pytest.mark.parametrize("arguments", [{}, {"worker": "a/1", "lines": "20"}])
def test_a_question_arrives(arguments: dict[str, str]) -> None:
    asked = AskedQuestion(7, "log", arguments)
    assert decode_question(wire.decode(encode_question(asked))) == asked


@pytest.mark.parametrize("told", [None, 3.5, [], {"text": "ä", "next": 4}])
def test_an_answer_arrives(told: object) -> None:
    frames = encode_told(AskedQuestion(7, "log", {}), told)
    message = wire.decode(frames)
    assert message.data["id"] == 7
    assert decode_told(message, "log") == told


def test_an_error_arrives_as_its_kind() -> None:
    error = UnsupportedFeature("no such question")
    error.detail = "line 3"
    told = decode_told(wire.decode(encode_told(AskedQuestion(7, "log", {}), error)), "log")
    assert type(told) is UnsupportedFeature
    assert (told.message, told.detail) == ("no such question", "line 3")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"what": "log"},
        {"id": 1},
        {"id": [], "what": "log"},
        {"id": 1, "what": "log", "with": []},
        {"id": 1, "what": "log", "with": {"lines": 3}},
    ],
)
def test_other_data_is_no_question(data: object) -> None:
    with pytest.raises(InvalidRequest, match="ASK expects an id"):
        decode_question(wire.decode(wire.encode(Kind.ASK, data)))
