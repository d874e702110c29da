"""Option types, and reading a section with a table of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.config.ini import Document, Section
from farm.experiment.config.option_table import (
    MOST_SECTIONS,
    ConfigOption,
    OptionTable,
    number_of,
    spoken,
)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *[("1", 1.0), (" 1.5e3 ", 1500.0), (True, 1.0), (np.float32(0.5), 0.5), ("-0", 0.0)],
        *[("nan", None), ("inf", None), (float("nan"), None), ("1_000", None), ("1" * 101, None)],
        *[(10**400, None), (None, None), ([1], None), ("", None), ("one", None), (1j, None)],
    ],
)
def test_numbers(value: object, number: float | None) -> None:
    assert number_of(value) == number
    assert str(number_of("-0.0")) == "0.0"


def parse(reads: str, text: str) -> Any:
    return ConfigOption.of_row(f"name | {reads} | none").parse(text)


@pytest.mark.parametrize(
    ("reads", "text", "value"),
    [
        ("text: a text", "so", "so"),
        *[("flag: true or false", text, True) for text in ("Yes", "on")],
        *[("flag: true or false", text, False) for text in ("off", "0")],
        *[("word: red or green", "Green", "green"), ("word: red", "red", "red")],
        *[("number: a finite number", "6.0", 6.0), ("number: a finite number", "[.75]", 0.75)],
        *[("number: a number, 0 or more", "0", 0.0), ("number: 0 or more", str(10**80), 1e80)],
        ("number: a number, more than 0 and less than 1", "1e-9", 1e-9),
        *[("whole: 0 or more", "6.0", 6), ("whole: from 1 to 9", "9", 9)],
        *[("whole: 0 or more", str(2**53), 2**53), ("whole: -3 or more", "-3", -3)],
        *[("names: names", "[a, b]", ("a", "b")), ("names: names", "6.0", ("6.0",))],
        *[("distinct: names", "[a, b]", ("a", "b")), ("sections: names", "[a, b]", ("a", "b"))],
        *[("rows: rows", "[1, 2.5]", ["1", "2.5"]), ("rows: rows", "6.0", ["6.0"])],
        *[("whole: 0 or more, or none", "None", None), ("whole: 0 or more, or none", "6", 6)],
    ],
)
def test_what_texts_mean(reads: str, text: str, value: Any) -> None:
    read = parse(reads, text)
    assert read == value
    assert type(read) is type(value)


def test_numbers_are_an_array() -> None:
    assert parse("numbers: numbers", "[1, 2.5]").tolist() == [1.0, 2.5]
    assert parse("numbers: 0 or more", "0").dtype == np.float64


@pytest.mark.parametrize(
    ("reads", "text", "more"),
    [
        ("flag: true or false", "so", ""),
        ("word: red, green or blue", "so", ""),
        *[("number: a finite number", text, "") for text in ("so", "inf", "nan", "[[1]]")],
        ("number: a number, 0 or more", "-1", ""),
        ("number: seconds, more than 0", "0", ""),
        *[("number: p, 0 or more and less than 1", text, "") for text in ("1", "-0.1", "so")],
        *[("whole: a whole number, 0 or more", text, "") for text in ("so", "0.5", "-1", "1e300")],
        ("whole: a whole number, 0 or more", str(2**53 + 2), ""),
        *[("whole: a whole number from 1 to 9", text, "") for text in ("0", "10", "so")],
        *[("names: a list such as [a, b]", text, "") for text in ("[]", "[[1]]", "['']")],
        ("names: a list such as [a, b]", "[a", "; ']' is missing at the end"),
        *[("numbers: numbers", "[a, b]", ""), ("numbers: widths, 0 or more", "[1, -1]", "")],
        ("numbers: numbers", "['[1]']", ""),
        ("rows: rows", "[", "; ']' is missing at the end"),
        ("whole: a whole number, 0 or more, or none", "so", ""),
    ],
)
def test_refusals_say_what_the_documentation_says(reads: str, text: str, more: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse(reads, text)
    assert str(caught.value) == reads.partition(": ")[2] + more


@pytest.mark.parametrize("kind", ["distinct", "sections"])
def test_names_that_are_to_differ(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^distinct names, but 'a' appears twice$"):
        parse(f"{kind}: names", "[a, b, a]")


def test_there_is_a_maximum_of_sections() -> None:
    names = [f"s{i}" for i in range(MOST_SECTIONS + 1)]
    assert len(parse("sections: names", str(names[1:]))) == MOST_SECTIONS
    with pytest.raises(ValueError, match=r"^1000 names at most, not 1001$"):
        parse("sections: names", str(names))


TABLE = OptionTable("""
count | whole: a whole number, 1 or more | 4 |
    older = number
name | text: a name | required
limit | whole: a whole number, 0 or more, or none | none
width | number: a finite number | half the count
sizes | numbers: numbers, one for each | required | classes = Box, Bag
input.<input> | number: a finite number | required
""")


def test_a_row_has_the_parts_of_an_option() -> None:
    count, sizes = TABLE.option("count"), TABLE.option("sizes")
    assert (count.kind, count.expected) == ("whole", "a whole number, 1 or more")
    assert (count.older, count.default, sizes.classes) == ("number", 4, "Box, Bag")


def section(**own: str) -> Section:
    return Document("", {"common": {"width": "8"}, "s": own}).section("s")


def test_values_and_defaults() -> None:
    given = section(count="6", name="so", limit="none")
    assert TABLE.read_all(given) == {"count": 6, "name": "so", "limit": None, "width": 8.0}
    blank = Section("s", {}, {"count": "", "name": "so"})
    assert TABLE.read_all(blank) == {"count": 4, "name": "so", "limit": None, "width": None}


def test_options_of_a_class_are_read_with_it() -> None:
    given = section(name="so", sizes="[1, 2]")
    assert "sizes" not in TABLE.read_all(given)
    assert TABLE.read_all(given, "Box")["sizes"].tolist() == [1.0, 2.0]
    assert len(TABLE.read_list(given, "sizes", 2)) == 2


def test_an_older_spelling_is_read_with_a_warning() -> None:
    older, both = section(number="6"), section(number="6", count="5")
    assert (TABLE.read(older, "count"), TABLE.read(both, "count")) == (6, 5)
    assert TABLE.older_spellings(older) == ["[s] number is an older spelling of count"]
    assert TABLE.older_spellings(both) == []


def test_a_placeholder_stands_for_any_name() -> None:
    assert [TABLE.has(n) for n in ("input.E", "input.", "inputs", "count")] == [
        *(True, False, False, True)
    ]
    assert TABLE.read(Section("s", {}, {"input.E": "3"}), "input.E") == 3.0


@pytest.mark.parametrize(
    ("given", "name", "text"),
    [
        ({}, "name", "[s] name is missing; expected a name"),
        ({"name": ""}, "name", "[s] name is missing; expected a name"),
        ({"count": "0"}, "count", "[s] count = 0: expected a whole number, 1 or more"),
        ({"number": "x"}, "count", "[s] number = x: expected a whole number, 1 or more"),
        ({"width": "y" * 200}, "width", f"[s] width = {'y' * 77}...: expected a finite number"),
    ],
)
def test_errors_say_where_what_and_what_is_expected(
    given: dict[str, str], name: str, text: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        TABLE.read(section(**given), name)
    assert str(caught.value) == text


def test_errors_name_common_for_what_stands_there() -> None:
    common = Document("", {"common": {"width": "w"}, "s": {}}).section("s")
    with pytest.raises(InvalidInput, match=r"^\[common\] width = w: expected a finite number$"):
        TABLE.read(common, "width")


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ("[1, 2]", "[s] sizes = [1, 2]: expected 3 numbers, one for each"),
        ("[1, 2, c]", "[s] sizes = [1, 2, c]: expected 3 numbers, one for each"),
        ("[1, 2", "[s] sizes = [1, 2: expected 3 numbers, one for each; ']' is missing at the end"),
        ("", "[s] sizes is missing; expected 3 numbers, one for each"),
    ],
)
def test_errors_of_lists_say_their_length(sizes: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        TABLE.read_list(section(sizes=sizes), "sizes", 3)
    assert str(caught.value) == text


def test_words_are_joined() -> None:
    assert [spoken(words) for words in ("a", "ab", "abc")] == ["a", "a or b", "a, b or c"]
