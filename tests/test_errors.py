"""Errors keep class, message and detail over wires and between processes."""

from __future__ import annotations

import inspect
import pickle
import traceback

import pytest

from farm import errors
from farm.errors import FarmError, ModelFailed, error_named

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, FarmError) and value is not FarmError
]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_the_same_after_a_journey(kind: type[FarmError]) -> None:
    error = kind("what happened", detail="where")
    for other in (
        error_named(kind.__name__, error.message, error.detail),
        pickle.loads(pickle.dumps(error)),
    ):
        assert type(other) is kind
        assert (other.message, other.detail, str(other)) == ("what happened", "where", str(error))


@pytest.mark.parametrize("kind", CLASSES)
def test_a_copy_names_its_call(kind: type[FarmError]) -> None:
    error = kind("what happened", detail="where")
    error.row = 3
    named = error.of_call("a-1")
    assert type(named) is kind
    assert (named.message, named.detail, named.row) == ("what happened", "where", 3)
    assert (error.call_id, named.call_id) == ("", "a-1")
    assert "a-1" in "".join(traceback.format_exception(named))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07\x1b[2Jgone", r"\x1b]0;title\x07\x1b[2Jgone"),
        ("over\rwritten \x08\x7f\x9b1m", r"over\x0dwritten \x08\x7f\x9b1m"),
        ("one\n\ttwo: ä β 😀", "one\n\ttwo: ä β 😀"),
    ],
)
def test_a_terminal_obeys_no_text_of_an_error(text: str, shown: str) -> None:
    error = error_named("ModelFailed", text, text)
    assert (error.message, error.detail, str(error)) == (shown, shown, shown)


def test_an_unknown_name_is_the_models_fault_and_said() -> None:
    error = error_named("SpilledCoffee", "on the desk", "trace")
    assert type(error) is ModelFailed
    assert (error.message, error.detail) == ("SpilledCoffee: on the desk", "trace")


def test_the_tree_at_the_top_of_the_module_is_complete() -> None:
    assert CLASSES
    shown = inspect.getdoc(errors) or ""
    assert [kind.__name__ for kind in CLASSES if f"─ {kind.__name__} " not in shown] == []
