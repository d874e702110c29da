"""Questions: answers at once and later, arguments that are needed, names that are not known."""

from __future__ import annotations

import asyncio

import pytest

from farm.dispatcher.questions import Questions, needed
from farm.errors import InvalidInput, UnsupportedFeature


def test_an_answer_may_come_at_once_or_later() -> None:
    async def later(arguments: object) -> int:
        await asyncio.sleep(0)
        return 4

    questions = Questions()
    questions.offer("now", lambda arguments: dict(arguments))
    questions.offer("later", later, changes=True)
    assert asyncio.run(questions.ask("now", {"a": "b"})) == {"a": "b"}
    assert asyncio.run(questions.ask("later", {})) == 4
    assert [questions.changes(name) for name in ("now", "later", "never")] == [False, True, None]


def test_an_answer_may_depend_on_who_asks() -> None:
    questions = Questions()
    questions.offer("me", lambda arguments: dict(arguments), of_asker=True)
    questions.offer("now", lambda arguments: dict(arguments))
    for asked in ({"a": "b"}, {"a": "b", "asker": "somebody else"}):
        answer = asyncio.run(questions.ask("me", asked, asker="anna"))
        assert answer == {"a": "b", "asker": "anna"}
    assert asyncio.run(questions.ask("me", {})) == {"asker": ""}
    assert asyncio.run(questions.ask("now", {"a": "b"}, asker="anna")) == {"a": "b"}


def test_an_unknown_name_is_told_the_known_ones() -> None:
    questions = Questions()
    questions.offer("now", dict)
    with pytest.raises(UnsupportedFeature, match="no question 'never'; it has: now"):
        asyncio.run(questions.ask("never", {}))


def test_what_is_needed_and_missing_is_named() -> None:
    assert needed({"worker": "a"}, "worker") == "a"
    for arguments in ({}, {"worker": ""}):
        with pytest.raises(InvalidInput, match="the argument 'worker' is missing"):
            needed(arguments, "worker")
