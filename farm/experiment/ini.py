"""The text of a configuration to sections of options, and options to values. Pure.

INI as Python's configparser reads it: [common] gives every section its defaults, `#` begins a
comment, `${section:option}` stands for the text of another option, names of options have no case.
A dictionary {section: {option: value}} means the same, and so does its JSON text.
"""

from __future__ import annotations

import configparser
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput

COMMON = "common"
SUBJECT = "farm"

LONGEST_TEXT = 1 << 20
"""Characters of a configuration, references followed; the longest in use have some thousands."""
DEEPEST_REFERENCE = 10
DEEPEST_LIST = 4
MOST_COMMON = 1000
"""Options of [common], which every section gets."""
LONGEST_ANSWER = 1 << 23
"""Characters of all sections with what [common] gives each."""
LONGEST_BLANK = 20
"""Blanks in a row, longer ones are shortened: configparser's time grows with their length, for
every character of a line that is no option."""

TRUE = ("1", "yes", "true", "on")
FALSE = ("0", "no", "false", "off")

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<path>[^}]*)\})?")
_BLANKS = re.compile(rf"[^\S\n]{{{LONGEST_BLANK + 1},}}")
_SPECIAL = re.compile(r"""[\[\](),"']""")

Nested = str | list["Nested"]
"""What a list is read as: its items are texts or lists."""

Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class Section:
    """Options of one section; the readers raise InvalidInput, which says where.

    own: those that stand in it; all: these and those of [common].
    """

    name: str
    own: Mapping[str, str] = field(default_factory=dict)
    all: Mapping[str, str] = field(default_factory=dict)

    def has(self, option: str) -> bool:
        """Whether the option is given, here or in [common], with a value."""
        return bool(self.all.get(option))

    def where(self, option: str) -> str:
        """The place of an option, for a message: `[section] option`."""
        return f"[{self.name if option in self.own or option not in self.all else COMMON}] {option}"

    def text(self, option: str, expected: str = "a value") -> str:
        """The text of an option that must be there."""
        if not self.has(option):
            raise InvalidInput(f"{self.where(option)} is missing; expected {expected}")
        return self.all[option]

    def wrong(self, option: str, expected: str) -> InvalidInput:
        """The error of an option whose value is not what is expected."""
        text = " ".join(self.all.get(option, "").split())
        text = text if len(text) <= 80 else f"{text[:77]}..."
        return InvalidInput(f"{self.where(option)} = {text}: expected {expected}")

    def number(self, option: str, expected: str = "a finite number") -> float:
        """A finite number that must be there."""
        text = self.text(option, expected)
        value = number_of(text.removeprefix("[").removesuffix("]"))  # a list of one means it too
        if value is None:
            raise self.wrong(option, expected)
        return value

    def whole(self, option: str, default: int, *, least: int = 0) -> int:
        """A whole number, the default when it is not given."""
        if not self.has(option):
            return default
        expected = f"a whole number, {least} or more"
        value = self.number(option, expected)
        if value != int(value) or value < least or value > 2**53:
            raise self.wrong(option, expected)
        return int(value)

    def whole_or_none(self, option: str, *, least: int = 0) -> int | None:
        """A whole number, None when it is not given or given as none."""
        if self.all.get(option, "").lower() in ("", "none"):
            return None
        return self.whole(option, 0, least=least)

    def flag(self, option: str, default: bool) -> bool:
        """Whether the option says true, yes, on or 1; the default when it is not given."""
        if not self.has(option):
            return default
        text = self.all[option].lower()
        if text not in TRUE + FALSE:
            raise self.wrong(option, "true or false")
        return text in TRUE

    def names(self, option: str, expected: str = "a list such as [a, b]") -> tuple[str, ...]:
        """A list of texts that must be there and have an item."""
        nested = self._nested(option, expected)
        names = [nested] if isinstance(nested, str) else nested
        if not names or any(not isinstance(name, str) or not name for name in names):
            raise self.wrong(option, expected)
        return tuple(str(name) for name in names)

    def unique_names(self, option: str, expected: str) -> tuple[str, ...]:
        """A list of texts that differ."""
        names = self.names(option, expected)
        if repeated := first_repeated(names):
            raise self.wrong(option, f"names that differ, but {repeated!r} stands there twice")
        return names

    def one_of(self, option: str, words: Sequence[Word], default: Word) -> Word:
        """One of the words, the default when it is not given."""
        text = self.all.get(option, "").lower()
        if not text:
            return default
        for word in words:
            if word == text:
                return word
        raise self.wrong(option, spoken(words, "or"))

    def rows(self, option: str, expected: str) -> list[Nested]:
        """A list of lists, or of texts, that must be there."""
        nested = self._nested(option, expected)
        if isinstance(nested, str):
            return [nested]
        return nested

    def numbers(self, option: str, expected: str = "numbers such as [0, 1.5]") -> Array:
        """Finite numbers, shape (n,), that must be there."""
        values = [number_of(name) for name in self.names(option, expected)]
        if any(value is None for value in values):
            raise self.wrong(option, expected)
        return np.array(values, dtype=np.float64)

    def _nested(self, option: str, expected: str) -> Nested:
        try:
            return read_list(self.text(option, expected))
        except ValueError as error:
            raise self.wrong(option, f"{expected}; {error}") from None


@dataclass(frozen=True, slots=True)
class Document:
    """The sections of a configuration, with and without what [common] gives them.

    text: what it was read from; reading that again gives the same.
    """

    text: str
    own: Mapping[str, Mapping[str, str]]

    def has(self, name: str) -> bool:
        """Whether there is a section of that name."""
        return name in self.own

    def section(self, name: str) -> Section:
        """The section of that name; one that is not there has the options of [common]."""
        own = self.own.get(name, {})
        return Section(name, own, {**self.own.get(COMMON, {}), **own})


def read_document(source: str | Mapping[str, Any]) -> Document:
    """The sections of an INI text, a dictionary or the JSON text of one. Raises InvalidInput."""
    if isinstance(source, str):
        if len(source) > LONGEST_TEXT:
            raise InvalidInput(
                f"the config has {len(source)} characters; expected {LONGEST_TEXT} at most"
            )
        text = source
        is_json = source.lstrip("\ufeff \t\r\n").startswith("{")
        raw = _from_json(source) if is_json else _from_ini(source)
    elif isinstance(source, Mapping):
        raw = _from_mapping(source)
        text = json.dumps(raw, ensure_ascii=False)
        if len(text) > LONGEST_TEXT:
            raise InvalidInput(
                f"the config has {len(text)} characters; expected {LONGEST_TEXT} at most"
            )
    else:
        raise InvalidInput(
            f"the config is a {type(source).__name__}; expected a text or an object of sections"
        )
    own = _resolved(raw)
    common = own[COMMON]
    repeated = sum(len(option) + len(value) for option, value in common.items()) * len(own)
    if len(common) > MOST_COMMON or repeated > LONGEST_ANSWER:
        raise InvalidInput(
            f"[common] has {len(common)} options, {repeated} characters in all {len(own)} sections "
            f"together; expected {MOST_COMMON} and {LONGEST_ANSWER} at most"
        )
    return Document(text, own)


def read_list(text: str) -> Nested:
    """`[a, [1, 2]]` as lists of texts; a bare word stays a text. Raises ValueError.

    Items may be quoted; a bracket inside a word belongs to it, as in x[2].
    """
    root: list[Nested] = []
    stack = [root]
    word = ""
    done = False  # whether a list or a quoted text stands where the next item would
    position = 0
    while match := _SPECIAL.search(text, position):
        mark, start = match.group(), match.start()
        word = (word + text[position:start]).lstrip()
        position = match.end()
        if done and (word.strip() or mark in "[('\""):
            raise ValueError("a ',' is missing between two items")
        if mark in "[(" and word:
            position = 1 + _found("]" if mark == "[" else ")", text, position)
            word += text[start:position]
        elif mark in "[(":
            if len(stack) > DEEPEST_LIST:
                raise ValueError(f"lists are nested deeper than {DEEPEST_LIST}")
            inner: list[Nested] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif mark in "\"'" and word:
            word += mark
        elif mark in "\"'":
            position = 1 + _found(mark, text, position)
            stack[-1].append(text[start + 1 : position - 1])
            done = True
        else:
            if word.strip():
                stack[-1].append(word.strip())
            elif mark == "," and not done:
                raise ValueError("an item is missing before ','")
            word, done = "", mark != ","
            if mark != ",":
                stack.pop()
            if not stack:
                raise ValueError(f"{mark!r} closes nothing")
    word = (word + text[position:]).strip()
    if len(stack) > 1:
        raise ValueError("']' is missing at the end")
    if word and done:
        raise ValueError("a ',' is missing between two items")
    if word:
        root.append(word)
    return root[0] if len(root) == 1 else root


def _found(mark: str, text: str, position: int) -> int:
    place = text.find(mark, position)
    if place < 0:
        raise ValueError(f"{mark!r} is missing")
    return place


def number_of(value: object) -> float | None:
    """The finite number that a value is or that its text means; None when it is none."""
    if isinstance(value, str) and ("_" in value or len(value) > 100):
        return None
    if not isinstance(value, str | int | float | np.integer | np.floating | np.bool_):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number + 0.0 if math.isfinite(number) else None


def first_repeated(names: Sequence[str]) -> str | None:
    """The first name that stands there a second time."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def spoken(words: Sequence[str], last: str) -> str:
    """`a, b or c`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _from_ini(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(
        default_section="",  # no header makes this name: [common] is read like the others
        inline_comment_prefixes=("#",),
        allow_no_value=True,
        empty_lines_in_values=False,
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # see `_plain_names`
    try:
        parser.read_string(_BLANKS.sub(" " * LONGEST_BLANK, text.removeprefix("\ufeff")))
    except configparser.MissingSectionHeaderError as error:
        raise InvalidInput(
            f"line {error.lineno} of the config stands before any [section]"
        ) from None
    except configparser.DuplicateSectionError as error:
        raise InvalidInput(f"section [{error.section}] stands twice in the config") from None
    except configparser.DuplicateOptionError as error:
        raise InvalidInput(f"[{error.section}] {error.option} stands twice in the config") from None
    except (configparser.Error, AttributeError) as error:
        # An option without '=' that goes on in an indented line: Python 3.11 and 3.12 break off
        # with AttributeError, later ones have an error without a list of lines for it.
        if not (lines := getattr(error, "errors", None)):
            raise InvalidInput(
                "an indented line of the config goes on after an option without '='; expected "
                "option = value, or no indentation"
            ) from None
        raise InvalidInput(
            f"line {lines[0][0]} of the config is {lines[0][1]}; expected [section] or "
            "option = value"
        ) from None
    sections = {name: _plain_names(name, dict(parser.items(name))) for name in parser.sections()}
    return {COMMON: {}, **sections}


def _from_json(text: str) -> dict[str, dict[str, str]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if repeated := first_repeated([name for name, _ in pairs]):
            raise InvalidInput(f"{repeated!r} stands twice in one object of the config")
        return dict(pairs)

    try:
        data = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the config begins as JSON, but is none: {error}") from None
    return _from_mapping(data)


def _from_mapping(source: Mapping[Any, Any]) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {COMMON: {}}
    for name, options in source.items():
        if not isinstance(name, str):
            raise InvalidInput(f"a section is named {name!r}; expected a text")
        if not isinstance(options, Mapping):
            raise InvalidInput(
                f"section [{name}] is a {type(options).__name__}; expected an object of options"
            )
        texts = {}
        for option, value in options.items():
            if not isinstance(option, str):
                raise InvalidInput(f"[{name}] has an option named {option!r}; expected a text")
            texts[option] = _as_text(value, f"[{name}] {option}")
        sections[name] = _plain_names(name, texts)
    return sections


def _as_text(value: Any, where: str, depth: int = 0) -> str:
    """The text that a value of a dictionary stands for in INI."""
    if depth > DEEPEST_LIST:
        raise InvalidInput(f"{where}: lists are nested deeper than {DEEPEST_LIST}")
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str):
        text = value.strip()
        # Inside of a list, what would end the item is quoted.
        quote = "'" if '"' in value else '"'
        return f"{quote}{value}{quote}" if depth and (not text or _SPECIAL.search(text)) else text
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_as_text(item, where, depth + 1) for item in value)}]"
    raise InvalidInput(
        f"{where} is a {type(value).__name__}; expected a text, a number, true, false or a list"
    )


def _plain_names(section: str, options: Mapping[str, str | None]) -> dict[str, str]:
    """Options with names in lower case, but for [farm] after the dot, where names have a case."""
    plain: dict[str, str] = {}
    for option, text in options.items():
        first, dot, rest = option.strip().partition(".")
        name = first.lower() + dot + (rest if section == SUBJECT else rest.lower())
        if name in plain:
            raise InvalidInput(f"[{section}] {name} stands twice in the config")
        plain[name] = text or ""
    return plain


def _resolved(raw: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The options with every `${...}` replaced by the text that it stands for."""
    references = _References(raw)
    return {
        name: {option: references.text(name, option, text) for option, text in options.items()}
        for name, options in raw.items()
    }


class _References:
    """Follows references; what they make together is bounded, as each may stand for many."""

    def __init__(self, raw: Mapping[str, Mapping[str, str]]) -> None:
        self.raw = raw
        self.made = 0

    def text(self, section: str, option: str, text: str, depth: int = 0) -> str:
        if "$" not in text:
            return text
        where = f"[{section}] {option}"
        if depth > DEEPEST_REFERENCE:
            raise InvalidInput(f"{where}: ${{...}} refers to itself, or further than 10 steps")

        def one(match: re.Match[str]) -> str:
            if match["dollar"]:
                return "$"
            if match["path"] is None:
                raise InvalidInput(f"{where}: expected ${{section:option}} or $$ after '$'")
            other, colon, name = match["path"].rpartition(":")
            other = other if colon else section
            name = name.strip().lower()
            found = self.raw.get(other, {}).get(name, self.raw[COMMON].get(name))
            if other not in self.raw or found is None:
                raise InvalidInput(f"{where}: ${{{match['path']}}} is no option of this config")
            made = self.text(other, name, found, depth + 1)
            self.made += len(made) + 1
            if self.made > LONGEST_TEXT:
                raise InvalidInput(
                    f"{where}: with its references followed the config has more than "
                    f"{LONGEST_TEXT} characters"
                )
            return made

        return _REFERENCE.sub(one, text)
