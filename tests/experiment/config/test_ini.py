"""Parsing INI texts and dictionaries into sections of options, and lists."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidInput
from farm.experiment.config.ini import LONGEST_TEXT, read_document, read_list


def options(text: str, section: str = "a") -> dict[str, str]:
    return dict(read_document(text).section(section).all)


def test_common_gives_defaults() -> None:
    document = read_document("[common]\nx = 1\ny = 2\n[a]\ny = 3\n[b]\n")
    assert document.section("a").all == {"x": "1", "y": "3"}
    assert document.section("a").own == {"y": "3"}
    assert document.section("b").all == {"x": "1", "y": "2"}
    assert document.section("elsewhere").all == {"x": "1", "y": "2"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x = 1", "1"),
        ("X=1", "1"),
        ("x: 1", "1"),
        ("x = 1 # so", "1"),
        ("x = 1#2", "1#2"),
        ("# y = 2\nx = 1", "1"),
        ("; y = 2\nx = 1", "1"),
        ("x", ""),
        ("x =", ""),
        ("x = [1,\n  2]", "[1,\n2]"),
        ("\r\nx = 1\r", "1"),
        ("x = a = b", "a = b"),
        ("x = $$5", "$5"),
        ("x = ${y}\ny = 2", "2"),
        ("x = <${other:Y}>", "<7>"),
        ("x = ${a:y}${y}\ny = 2", "22"),
        ("x = ${y}\ny = ${z}\nz = ${other:y}", "7"),
        ("x = ${shared}", "9"),
        ("x = ${other:shared}", "9"),
        ("x = ${common:shared}", "9"),
        ("x = 100%", "100%"),
    ],
)
def test_options_as_they_are_written(line: str, value: str) -> None:
    text = f"[common]\nshared = 9\n[other]\ny = 7\n[a]\n{line}\n"
    assert options(text)["x"] == value


def test_a_text_may_be_indented_as_a_whole() -> None:
    assert options("\ufeff\n    [a]\n    x = 1\n    y = 2\n") == {"x": "1", "y": "2"}


def test_section_names_have_a_case() -> None:
    document = read_document("[a]\nx = 1\n[A]\nx = 2\n")
    assert (document.section("a").all["x"], document.section("A").all["x"]) == ("1", "2")


def test_names_behind_a_dot_keep_their_case_in_the_farm_section_alone() -> None:
    assert options("[farm]\nInput.E = 1\nModel = m", "farm") == {"input.E": "1", "model": "m"}
    assert options("[farm]\ninput.E = 1\ninput.e = 2", "farm") == {"input.E": "1", "input.e": "2"}
    assert options("[a]\nInput.E = 1") == {"input.e": "1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", "line 1 of the config is before any [section]"),
        ("\n\nhello", "line 3 of the config is before any [section]"),
        ("[a]\n[a]", "section [a] appears twice"),
        ("[common]\n[common]", "section [common] appears twice"),
        ("[a]\nx = 1\nx = 2", "[a] x appears twice"),
        ("[a]\nx = 1\nX = 2", "[a] x appears twice"),
        ("[a]\n= 1", "line 2 of the config is '= 1'; expected [section] or option = value"),
        ("[a]\nx\n  1", "an indented line of the config continues an option without '='"),
        ("[a]\nx = $y", "[a] x: expected ${section:option} or $$ after '$'"),
        ("[a]\nx = ${y", "[a] x: expected ${section:option} or $$ after '$'"),
        ("[a]\nx = ${y}", "[a] x: ${y} is not an option of this config"),
        ("[a]\nx = ${b:y}", "[a] x: ${b:y} is not an option of this config"),
        ("[a]\nx = ${x}", "[a] x: ${...} refers to itself, or further than 10 steps"),
        ("[a]\nx = ${y}\ny = ${x}", "refers to itself, or further than 10 steps"),
        (" " * LONGEST_TEXT + "x", f"has {LONGEST_TEXT + 1} characters; expected {LONGEST_TEXT}"),
        ("{", "the config starts like JSON, but is not valid:"),
        ('{"a": {"x": 1}, "a": {}}', "'a' appears twice in one object"),
        ('{"a": {"x": 1, "x": 2}}', "'x' appears twice in one object"),
        ('{"a": {"x": 1, "X": 2}}', "[a] x appears twice"),
        ('{"a": 1}', "section [a] is a int; expected an object of options"),
        ('{"a": {"x": {}}}', "[a] x is a dict; expected a text, a number, true, false or a list"),
        ('{"a": {"x": [[[[[1]]]]]}}', "[a] x: lists are nested deeper than 4"),
    ],
)
def test_texts_that_are_refused(text: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_document(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (object(), "[a] x is a object; expected a text"),
        ("y" * LONGEST_TEXT, f"expected {LONGEST_TEXT} at most"),
    ],
)
def test_values_that_are_refused(value: Any, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_document({"a": {"x": value}})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[a]\n" + ("a" + " " * 999) * 1000,
        "[a]\n" + "x" * (LONGEST_TEXT - 10),
        "[a]\nx = " + "[" * 500_000,
        "[" * 500_000,
        '{"a":' * 100_000,
        "[a]\nx = " + "${" * 300_000,
        "[a]\n" + "\n".join(f"o{i} = " + f"${{o{i + 1}}}" * 50 for i in range(9)) + "\no9 = x" * 9,
        "[a]\n" + "\n".join(f"o{i} = " + f"${{o{i + 1}}}" * 50 for i in range(9)) + "\no9 = x",
    ],
)
def test_hostile_texts_end_soon(text: str) -> None:
    start = time.process_time()
    try:
        document = read_document(text)
        read_list(document.section("a").all.get("x", ""))
    except (InvalidInput, ValueError) as error:
        message = str(error)
        if len(message) > 1000:
            raise AssertionError(message[:200]) from error
    assert time.process_time() - start < 5.0


@given(st.text("[]abc=:#;${} \n\t\"',1", max_size=80))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        document = read_document(text)
    except InvalidInput as error:
        refusal = str(error)
    else:
        assert read_document(document.text) == document
        refusal = ""
    assert "\n" not in refusal


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab # =:\n[]\"',;", max_size=10),
    st.lists(st.text("ab #", max_size=5), max_size=3),
)


@given(
    st.dictionaries(st.text("ab#\n", max_size=3), st.dictionaries(st.sampled_from("xyz"), VALUES))
)
def test_the_text_of_a_dictionary_reads_back(source: dict[str, Any]) -> None:
    document = read_document(source)
    assert read_document(document.text) == document


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (0.5, "0.5"),
        (True, "True"),
        (None, ""),
        (" so ", "so"),
        ("# 5 of 6", "# 5 of 6"),
        (["u", "v"], "[u, v]"),
        ([[1, 2.5], ["a, b", ""]], '[[1, 2.5], ["a, b", ""]]'),
        ([], "[]"),
    ],
)
def test_values_of_dictionaries(value: Any, text: str) -> None:
    document = read_document({"common": {"y": 2}, "a": {"X": value}})
    assert document.section("a").all == {"y": "2", "x": text}


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a", "a"),
        ("", []),
        ("[]", []),
        ("[a]", ["a"]),
        ("[a, b c ,d,]", ["a", "b c", "d"]),
        ("a, b", ["a", "b"]),
        ("a,", "a"),
        ("[[1, 2], [3, 4]]", [["1", "2"], ["3", "4"]]),
        ("[1, 2], [3, 4]", [["1", "2"], ["3", "4"]]),
        ("((1, 2), [3])", [["1", "2"], ["3"]]),
        ("[[[1, 2], [3, 4]], ]", [[["1", "2"], ["3", "4"]]]),
        ("['a, b', \"c]\", '']", ["a, b", "c]", ""]),
        ("[it's, d]", ["it's", "d"]),
        ("[x[0], x[1,2], f(a, b)]", ["x[0]", "x[1,2]", "f(a, b)"]),
        ("[1,\n2]", ["1", "2"]),
    ],
)
def test_lists(text: str, items: Any) -> None:
    assert read_list(text) == items


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a", "']' is missing at the end"),
        ("a]", "']' closes nothing"),
        ("[a]]", "']' closes nothing"),
        ("[a,,b]", "an item is missing before ','"),
        ("[,]", "an item is missing before ','"),
        ("[[1] [2]]", "a ',' is missing between two items"),
        ("[1] 2", "a ',' is missing between two items"),
        ("['a' b]", "a ',' is missing between two items"),
        ("['a' 'b']", "a ',' is missing between two items"),
        ("[['a']'b']", "a ',' is missing between two items"),
        ("['a]", '"\'" is missing'),
        ("[x[0]", "']' is missing at the end"),
        ("[x[0", "']' is missing"),
        ("[[[[[1]]]]]", "lists are nested deeper than 4"),
    ],
)
def test_lists_that_are_none(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_list(text)
    assert str(caught.value) == reason


WORDS = st.text("ab1 .-#x'", min_size=1).map(str.strip).filter(lambda s: s and s[0] != "'")
NESTED: st.SearchStrategy[Any] = st.recursive(
    WORDS, lambda inner: st.lists(inner, max_size=3), max_leaves=8
)


def depth(items: Any) -> int:
    return 1 + max(map(depth, items), default=0) if isinstance(items, list) else 0


def written(items: Any) -> str:
    return f"[{', '.join(map(written, items))}]" if isinstance(items, list) else str(items)


@given(st.lists(NESTED, max_size=3).filter(lambda items: depth(items) <= 4))
def test_lists_read_back(items: Any) -> None:
    assert read_list(written(items)) == items


@given(st.text("[](),'\"ab 1", max_size=40))
def test_any_text_is_a_list_or_none(text: str) -> None:
    try:
        items = read_list(text)
    except ValueError:
        return
    assert depth(items) <= 5


def test_the_text_of_a_dictionary_is_its_json() -> None:
    assert json.loads(read_document({"a": {"x": 1}}).text) == {"common": {}, "a": {"x": "1"}}
