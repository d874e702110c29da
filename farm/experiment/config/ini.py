"""The syntax of a configuration: parses its text into sections of text options. Pure.

The format is INI as Python's configparser reads it, with [common] as the default section, `#` for
comments and `${section:option}` for the text of another option. A dictionary {section: {option:
value}} is equivalent, and so is its JSON text.
"""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.errors import InvalidInput, shortened

COMMON = "common"
FARM = "farm"

LONGEST_TEXT = 1 << 20
"""Maximum characters of a configuration, with references resolved; real ones have thousands."""
DEEPEST_REFERENCE = 10
DEEPEST_LIST = 4
MOST_COMMON = 1000
"""Maximum options of [common], which every section inherits."""
LONGEST_ANSWER = 1 << 23
"""Maximum characters of all sections, including the options that each inherits from [common]."""
LONGEST_BLANK = 20
"""Longer runs of blanks are shortened: configparser's time per character grows with them."""

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<path>[^}]*)\})?")
_BLANKS = re.compile(rf"[^\S\n]{{{LONGEST_BLANK + 1},}}")
_SPECIAL = re.compile(r"""[\[\](),"']""")
_TOKEN = re.compile(
    r"""\s*(?:([\[(])|([,\])])|(["'])(.*?)\3|"""
    r"""([^\[\](),"'\s](?:[^\[\](),]++|\[[^\]]*\]|\([^)]*\))*+)([\[(])?)""",
    re.DOTALL,
)
"""The start of a list; the end of an item; a quoted text; or a word with whole brackets."""
NO_COMMA = "a ',' is missing between two items"

Nested = str | list["Nested"]
"""An item of a parsed list: a text or a list."""


@dataclass(frozen=True, slots=True)
class Section:
    """The options of one section, as texts.

    own: those written in the section; all: these and those of [common].
    """

    name: str
    own: Mapping[str, str] = field(default_factory=dict)
    all: Mapping[str, str] = field(default_factory=dict)

    def has(self, option: str) -> bool:
        """Whether the option has a value, in this section or in [common]."""
        return bool(self.all.get(option))

    def where(self, option: str) -> str:
        """Return the place of an option for a message: `[section] option`."""
        return f"[{self.name if option in self.own or option not in self.all else COMMON}] {option}"

    def wrong(self, option: str, expected: str) -> InvalidInput:
        """Return the error for an option with an invalid value."""
        text = shortened(" ".join(self.all.get(option, "").split()), 80)
        return InvalidInput(f"{self.where(option)} = {text}: expected {expected}")


@dataclass(frozen=True, slots=True)
class Document:
    """The sections of a configuration, with and without the options inherited from [common].

    text: the source; reading it again returns an equal document.
    """

    text: str
    own: Mapping[str, Mapping[str, str]]

    def section(self, name: str) -> Section:
        """Return the section of this name; a missing one has only the options of [common]."""
        own = self.own.get(name, {})
        return Section(name, own, {**self.own.get(COMMON, {}), **own})


def read_document(source: str | Mapping[str, Any]) -> Document:
    """Parse an INI text, a dictionary or its JSON text into sections. Raises InvalidInput."""
    raw = {} if isinstance(source, str) else _from_mapping(source)
    text = source if isinstance(source, str) else json.dumps(raw, ensure_ascii=False)
    if len(text) > LONGEST_TEXT:
        raise InvalidInput(
            f"the config has {len(text)} characters; expected {LONGEST_TEXT} at most"
        )
    if isinstance(source, str):
        is_json = source.lstrip("\ufeff \t\r\n").startswith("{")
        raw = _from_json(source) if is_json else _from_ini(source)
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
    """Parse `[a, [1, 2]]` into lists of texts; a bare word stays a text. Raises ValueError.

    Items may be quoted; a bracket inside a word belongs to it, as in x[2].
    """
    root: list[Nested] = []
    stack = [root]
    done = False  # whether the current item is complete
    position = 0
    while match := _TOKEN.match(text, position):
        opening, end, quote, quoted, word, unclosed = match.groups()
        position = match.end()
        if done and not end:
            raise ValueError(NO_COMMA)
        if opening:
            if len(stack) > DEEPEST_LIST:
                raise ValueError(f"lists are nested deeper than {DEEPEST_LIST}")
            inner: list[Nested] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif end == ",":
            if not done:
                raise ValueError("an item is missing before ','")
            done = False
        elif end:
            stack.pop()
            if not stack:
                raise ValueError(f"{end!r} closes nothing")
            done = True
        else:
            stack[-1].append(quoted if quote else word.strip())
            done = True
        if unclosed:
            raise ValueError(f"{']' if unclosed == '[' else ')'!r} is missing")
    if rest := text[position:].strip():
        raise ValueError(NO_COMMA if done else f"{rest[0]!r} is missing")
    if len(stack) > 1:
        raise ValueError("']' is missing at the end")
    return root[0] if len(root) == 1 else root


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time, or None."""
    places = {name: i for i, name in reversed(list(enumerate(names)))}
    return next((name for i, name in enumerate(names) if places[name] < i), None)


def _from_ini(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(
        default_section="",  # no header produces this name: [common] is read like other sections
        inline_comment_prefixes=("#",),
        allow_no_value=True,
        empty_lines_in_values=False,
    )
    # `_plain_names` converts the names. The documentation of configparser sets it like this.
    parser.optionxform = str  # type: ignore[method-assign, assignment]  # as documented
    try:
        parser.read_string(_BLANKS.sub(" " * LONGEST_BLANK, text.removeprefix("\ufeff")))
    except configparser.MissingSectionHeaderError as error:
        raise InvalidInput(f"line {error.lineno} of the config is before any [section]") from None
    except configparser.DuplicateSectionError as error:
        raise InvalidInput(f"section [{error.section}] appears twice in the config") from None
    except configparser.DuplicateOptionError as error:
        raise InvalidInput(
            f"[{error.section}] {error.option} appears twice in the config"
        ) from None
    except (configparser.Error, AttributeError) as error:
        # Python 3.11 and 3.12 fail with AttributeError, later ones without a list of lines.
        if not (lines := getattr(error, "errors", None)):
            raise InvalidInput(
                "an indented line of the config continues an option without '='; expected "
                "option = value, or no indentation"
            ) from None
        number = lines[0][0]  # its line is quoted up to Python 3.12, and not from 3.13 on
        line = text.split("\n")[number - 1]
        raise InvalidInput(
            f"line {number} of the config is {line!r}; expected [section] or option = value"
        ) from None
    sections = {name: _plain_names(name, dict(parser.items(name))) for name in parser.sections()}
    return {COMMON: {}, **sections}


def _from_json(text: str) -> dict[str, dict[str, str]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if repeated := first_repeated([name for name, _ in pairs]):
            raise InvalidInput(f"{repeated!r} appears twice in one object of the config")
        return dict(pairs)

    try:
        data = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the config starts like JSON, but is not valid: {error}") from None
    return _from_mapping(data)


def _from_mapping(source: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {COMMON: {}}
    for name, options in source.items():
        if not isinstance(options, Mapping):
            raise InvalidInput(
                f"section [{name}] is a {type(options).__name__}; expected an object of options"
            )
        texts = {option: _as_text(value, f"[{name}] {option}") for option, value in options.items()}
        sections[name] = _plain_names(name, texts)
    return sections


def _as_text(value: Any, where: str, depth: int = 0) -> str:
    """Return the INI text of a JSON value from a dictionary."""
    if depth > DEEPEST_LIST:
        raise InvalidInput(f"{where}: lists are nested deeper than {DEEPEST_LIST}")
    if isinstance(value, str):
        text = value.strip()
        if not depth or (text and not _SPECIAL.search(text)):
            return text
        # Inside a list, text with characters that would end the item is quoted.
        if "'" in value and '"' in value:
            raise InvalidInput(
                f"{where} has the item {value!r}; expected no item with both ' and \""
            )
        quote = "'" if '"' in value else '"'
        return f"{quote}{value}{quote}"
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_as_text(item, where, depth + 1) for item in value)}]"
    raise InvalidInput(
        f"{where} is a {type(value).__name__}; expected a text, a number, true, false or a list"
    )


def _plain_names(section: str, options: Mapping[str, str | None]) -> dict[str, str]:
    """Return the options with lower-case names; in [farm], the part after a dot keeps its case."""
    plain: dict[str, str] = {}
    for option, text in options.items():
        first, dot, rest = option.strip().partition(".")
        name = first.lower() + dot + (rest if section == FARM else rest.lower())
        if name in plain:
            raise InvalidInput(f"[{section}] {name} appears twice in the config")
        plain[name] = text or ""
    return plain


def _resolved(raw: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the options with every `${...}` replaced by its text, of bounded total length."""
    made = 0

    def resolve(section: str, option: str, text: str, depth: int = 0) -> str:
        if "$" not in text:
            return text
        where = f"[{section}] {option}"
        if depth > DEEPEST_REFERENCE:
            raise InvalidInput(f"{where}: ${{...}} refers to itself, or further than 10 steps")

        def one(match: re.Match[str]) -> str:
            nonlocal made
            if match["dollar"]:
                return "$"
            if match["path"] is None:
                raise InvalidInput(f"{where}: expected ${{section:option}} or $$ after '$'")
            other, colon, name = match["path"].rpartition(":")
            other, name = other if colon else section, name.strip().lower()
            found = raw.get(other, {}).get(name, raw[COMMON].get(name))
            if other not in raw or found is None:
                raise InvalidInput(f"{where}: ${{{match['path']}}} is not an option of this config")
            resolved = resolve(other, name, found, depth + 1)
            made += len(resolved) + 1
            if made > LONGEST_TEXT:
                raise InvalidInput(
                    f"{where}: with its references followed the config has more than "
                    f"{LONGEST_TEXT} characters"
                )
            return resolved

        return _REFERENCE.sub(one, text)

    return {
        name: {option: resolve(name, option, text) for option, text in options.items()}
        for name, options in raw.items()
    }
