"""The message that ends sequences at a worker: their models and ids."""

from __future__ import annotations

from collections.abc import Iterable

from farm.call import Buffer
from farm.errors import InvalidRequest
from farm.sequences import SequenceId, checked_id
from farm.wire.messages import Kind, Message, encode


def encode_ended(ended: Iterable[tuple[str, SequenceId]]) -> list[Buffer]:
    """Encode END_SEQUENCES: the model and the id of each sequence."""
    return encode(Kind.END_SEQUENCES, list(ended))


def decode_ended(message: Message) -> list[tuple[str, SequenceId]]:
    """Return what `encode_ended` wrote. Raises InvalidRequest."""
    try:
        ended = [(model, checked_id(sequence)) for model, sequence in message.data]
        if not all(isinstance(model, str) for model, _ in ended):
            raise TypeError("a model is not a text")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"malformed END_SEQUENCES message: {error}"[:300]) from None
    return ended
