"""END_SEQUENCES, and the steps of calls, as messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farm.call import Call, ModelInfo, Operation, Origin, TensorInfo
from farm.errors import InvalidRequest
from farm.sequences import LARGEST_ID, SequenceLimits, SequenceStep
from farm.wire import messages as wire
from farm.wire.messages import Kind, decode_ended, encode_ended

CALL = Call("m", Operation.EVALUATE, (np.ones(2),), step=SequenceStep(7, start=True))


def test_ended_sequences_come_back() -> None:
    ended: list[tuple[str, int | str]] = [("m", 7), ("n", "x"), ("m", LARGEST_ID)]
    assert decode_ended(wire.decode(encode_ended(ended))) == ended


@pytest.mark.parametrize("data", [None, 7, [7], [["m"]], [["m", 0]], [[1, 7]], [["m", 7, 8]]])
def test_malformed_message_is_refused(data: Any) -> None:
    message = wire.decode(wire.encode(Kind.END_SEQUENCES, data))
    with pytest.raises(InvalidRequest, match="malformed END_SEQUENCES message"):
        decode_ended(message)


@pytest.mark.parametrize(
    "step", [SequenceStep(7, start=True), SequenceStep("x", end=True), SequenceStep(LARGEST_ID)]
)
@pytest.mark.parametrize("origin", [None, Origin("id-1", "me")])
@pytest.mark.parametrize("config", ["{}", '{"a":1}'])
def test_steps_come_back(step: SequenceStep, origin: Origin | None, config: str) -> None:
    call = replace(CALL, step=step, origin=origin, config=config)
    (((_, found),)) = wire.decode_calls(wire.decode(wire.encode_calls([(1, call)])))[1]
    assert isinstance(found, Call)
    assert (found.step, found.origin, found.config) == (step, origin, config)


def test_many_steps_are_in_no_group() -> None:
    """Their ids differ, which a group has no place for; those around them are a group."""
    plain = replace(CALL, step=None)
    tasks = [(i, plain if i % 10 else replace(CALL, step=SequenceStep(i + 1))) for i in range(40)]
    found = wire.decode_calls(wire.decode(wire.encode_calls(tasks)))[1]
    assert [(i, call.step) for i, call in found if isinstance(call, Call)] == [
        (i, call.step) for i, call in tasks
    ]


@pytest.mark.parametrize("step", [[7], [0, True, False], [7, 1, 0], ["x" * 129, True, True], "x"])
def test_malformed_step_is_an_error_of_its_call(step: Any) -> None:
    row = [1, "m", "evaluate", [], "{}", None, None, step]
    ((_, found),) = wire.decode_calls(wire.decode(wire.encode(Kind.CALLS, [None, [row]])))[1]
    assert isinstance(found, InvalidRequest)


def test_limits_of_a_model_come_back_and_others_have_no_such_key() -> None:
    info = ModelInfo("m", (TensorInfo("x", ()),), ())
    assert "sequences" not in info.to_json()
    stateful = replace(info, sequences=SequenceLimits(2, 3.0))
    assert ModelInfo.from_json(stateful.to_json()) == stateful
    with pytest.raises(ValueError, match="sequences a worker"):
        ModelInfo.from_json({**info.to_json(), "sequences": [0, 1.0]})
