"""Encodes questions of native clients about the farm itself, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from farm.call import Buffer
from farm.errors import FarmError, InvalidRequest, error_named
from farm.wire.messages import Kind, Message, encode, error_row


class AskedQuestion(NamedTuple):
    """A question with the number that its client gave it. what: its name; arguments: texts."""

    number: int | str
    what: str
    arguments: Mapping[str, str]


def encode_question(asked: AskedQuestion) -> list[Buffer]:
    """Return the frames of an ASK."""
    data = {"id": asked.number, "what": asked.what}
    return encode(Kind.ASK, {**data, "with": asked.arguments} if asked.arguments else data)


def decode_question(message: Message) -> AskedQuestion:
    """Return the question of an ASK. Raises InvalidRequest."""
    data = message.data if isinstance(message.data, dict) else {}
    number, what, arguments = data.get("id"), data.get("what"), data.get("with", {})
    texts = isinstance(arguments, dict) and all(isinstance(v, str) for v in arguments.values())
    if not isinstance(number, int | str) or not isinstance(what, str) or not texts:
        raise InvalidRequest(
            "ASK expects an id, the name of a question in 'what', and texts by name in 'with'"
        )
    return AskedQuestion(number, what, arguments)


def encode_told(asked: AskedQuestion, told: Any) -> list[Buffer]:
    """Return the frames of a TELL. told: JSON data, or a FarmError. Raises TypeError for others."""
    if isinstance(told, FarmError):
        return encode(Kind.TELL, {"id": asked.number, "error": error_row(told)})
    return encode(Kind.TELL, {"id": asked.number, asked.what: told})


def decode_told(message: Message, what: str) -> Any:
    """Return the answer to the question `what`, or a FarmError."""
    error = message.data.get("error")
    return message.data[what] if error is None else error_named(*map(str, error))
