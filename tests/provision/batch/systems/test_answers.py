"""What commands print: JSON among banners, and ids."""

from __future__ import annotations

import re

import pytest

from farm.provision.batch.systems.answers import IN_DOUBT, json_object, only_id, quoted, text_of

BANNER = "*** maintenance {tonight} ***\n{not json}\n"


def test_an_object_is_found_among_banners() -> None:
    assert json_object(f'{BANNER}{{"jobs": [1],\n "x": "a\nb"}}\n{BANNER}', "jobs")["jobs"] == [1]
    assert json_object('{"other": 1}\n  {"jobs": []}', "jobs") == {"jobs": []}


@pytest.mark.parametrize(
    "text", ["", BANNER, '{"jobs": [1', '{"other": 1}', '{"jobs": ["\0"]}', 'x {"jobs": []}', "[]"]
)
def test_what_is_no_such_object_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"no such object|NUL"):
        json_object(text, "jobs")


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("7.server\n", "7"),
        (f"{BANNER} 7.server \n{BANNER}", "7"),
        ("7.server\n7.server\n", "7"),
        ("7.server\n8.server\n", ""),
        ("", ""),
        ("see 7.server\n", ""),
    ],
)
def test_only_one_id_counts(text: str, job_id: str) -> None:
    assert only_id(text, re.compile(r"(\d+)\.\w+")) == job_id


def test_values_are_texts_on_one_line() -> None:
    row = {"a": " x\n y ", "b": None, "c": 7}
    assert [text_of(row, key) for key in "abcd"] == ["x y", "", "7", ""]
    assert len(quoted("x" * 500)) == 82


@pytest.mark.parametrize("text", ["Connection timed out", "End of File", "Broken pipe"])
def test_messages_after_which_a_job_may_exist(text: str) -> None:
    assert IN_DOUBT.search(text)
    assert not IN_DOUBT.search("Unknown queue")
