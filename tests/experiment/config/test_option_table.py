"""Option types, and reading a section with a table of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.experiment.config.ini import Document, Section
from farm.experiment.config.option_table import (
    REQUIRED,
    Computed,
    ConfigOption,
    Flag,
    Names,
    Number,
    NumberList,
    NumberRows,
    OptionTable,
    OptionType,
    OrNone,
    Text,
    Whole,
    Word,
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


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Text(), "so", "so"),
        *[
            (Flag(), "Yes", True),
            (Flag(), "on", True),
            (Flag(), "off", False),
            (Flag(), "0", False),
        ],
        *[(Word(["red", "green"]), "Green", "green"), (Word(["red"]), "red", "red")],
        *[(Number(), "6.0", 6.0), (Number(), "[.75]", 0.75), (Number(least=0), "0", 0.0)],
        *[(Number(above=0, below=1), "1e-9", 1e-9), (Whole(), "6.0", 6), (Whole(1, 9), "9", 9)],
        *[(Whole(), str(2**53), 2**53), (Whole(-3), "-3", -3)],
        *[(Names(), "[a, b]", ("a", "b")), (Names(), "6.0", ("6.0",))],
        (Names(words=["red", "green"]), "[Red, GREEN]", ("red", "green")),
        (Names(unique=True, most=2), "[a, b]", ("a", "b")),
        *[(NumberRows("rows"), "[1, 2.5]", ["1", "2.5"]), (NumberRows("rows"), "6.0", ["6.0"])],
        *[(OrNone(Whole()), "None", None), (OrNone(Whole()), "6", 6)],
    ],
)
def test_what_texts_mean(kind: OptionType, text: str, value: Any) -> None:
    read = kind.read(text)
    assert read == value
    assert type(read) is type(value)


def test_numbers_are_an_array() -> None:
    assert NumberList().read("[1, 2.5]").tolist() == [1.0, 2.5]
    assert NumberList(least=0).read("0").dtype == np.float64


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Flag(), "so", "true or false"),
        (Word(["red", "green", "blue"]), "so", "red, green or blue"),
        *[(Number(), text, "a finite number") for text in ("so", "inf", "nan", "[[1]]")],
        (Number("a number", least=0), "-1", "a number, 0 or more"),
        (Number("seconds", above=0), "0", "seconds, more than 0"),
        *[
            (Number("a probability", least=0, below=1), text, "a probability, 0 or more and less")
            for text in ("1", "-0.1", "so")
        ],
        *[(Whole(), text, "a whole number, 0 or more") for text in ("so", "0.5", "-1", "1e300")],
        *[(Whole(1, 9), text, "a whole number from 1 to 9") for text in ("0", "10", "so")],
        *[(Names(), text, "a list such as [a, b]") for text in ("[]", "[[1]]", "['']")],
        (Names(), "[a", "a list such as [a, b]; ']' is missing at the end"),
        (Names(unique=True), "[a, b, a]", "distinct names, but 'a' appears twice"),
        (Names(most=2), "[a, b, a]", "2 names at most, not 3"),
        (Names("colours", words=["red"]), "[red, rot]", "colours"),
        (NumberList(), "[a, b]", "numbers such as [0, 1.5]"),
        (NumberList("widths", least=0), "[1, -1]", "widths"),
        (NumberRows("rows"), "[", "rows; ']' is missing at the end"),
        (OrNone(Whole()), "so", "a whole number, 0 or more, or none"),
    ],
)
def test_texts_that_are_refused(kind: OptionType, text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        kind.read(text)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Number("a number", least=0), "-1"), (Whole(1), "0"), (OrNone(Number()), "x"), (Flag(), "x")],
)
def test_refusals_say_what_the_documentation_says(kind: OptionType, text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        kind.read(text)
    assert str(caught.value) == kind.expected


TABLE = OptionTable(
    ConfigOption("count", Whole(1), "so many", 4, older="number"),
    ConfigOption("name", Text("a name"), "its name", REQUIRED),
    ConfigOption("limit", OrNone(Whole()), "a limit"),
    ConfigOption("width", Number(), "its width", Computed("half the count")),
    ConfigOption("sizes", NumberList("numbers, one for each"), "sizes", REQUIRED, classes=("Box",)),
    ConfigOption("input.<input>", Number(), "an input", REQUIRED),
)


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
    assert [spoken(w, "or") for w in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a or b",
        "a, b or c",
    ]
