"""The commands of farm that a document shows, and whether farm knows their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from farm.cli import cli

CODE = re.compile(r"`(farm [^`\n]+)`")
SEPARATORS = {"|", "||", "&&", ";", "&", ">", "--", "(", ")"}
MISSPELT = {"sttus"}
"""A verb that a page misspells on purpose."""
OPTION = re.compile(r"--?[a-z][\w-]*")


def unknown_options(text: str) -> list[str]:
    """Return the options and verbs of a block's commands that farm does not have."""
    found = []
    for words in commands(text):
        found += [f"{' '.join(words)}: {wrong}" for wrong in _unknown(words)]
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of farm in a block of a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        try:
            words = list(lexer)
        except ValueError:  # an apostrophe in the text of a here-document, or the like
            words = line.split()
        command: list[str] | None = None
        for word in words:
            if word in SEPARATORS or word == "farm":
                if command:
                    yield command
                command = [] if word == "farm" else None
            elif command is not None:
                command.append(word)
        if command:
            yield command


def _unknown(words: list[str]) -> list[str]:
    command: click.Command = cli
    context = click.Context(cli, info_name="farm", **cli.context_settings)
    rest = list(words)
    while isinstance(command, click.Group):
        options = _options(command, context)
        while rest and rest[0].startswith("-") and rest[0] in options:
            rest.pop(0)
        if not rest:
            return []
        inner = command.get_command(context, rest[0])
        if inner is not None:
            rest.pop(0)
        elif command is cli:
            word = rest[0]
            fine = not word.isalpha() or word.isupper() or word in MISSPELT
            return [] if fine else [f"no verb {rest[0]}"]
        else:
            inner = command.get_command(context, "run")
            if inner is None:
                return [f"no verb {rest[0]}"]
        settings = inner.context_settings
        context = click.Context(inner, parent=context, info_name=inner.name, **settings)
        command = inner
    known = _options(command, context)
    mixed = command.context_settings.get("allow_interspersed_args", True)
    wrong = []
    for word in rest:
        name = word.partition("=")[0]
        if not OPTION.fullmatch(name):
            if not mixed and not word.startswith("-"):
                break  # the words of another program
            continue
        if name not in known and name[:2] not in known - {"--"}:
            wrong.append(f"no option {name}")
    return wrong


def _options(command: click.Command, context: click.Context) -> set[str]:
    """Return all options of a command, with those of protocols."""
    parameters = command.get_params(context)
    return {
        name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)
    }
