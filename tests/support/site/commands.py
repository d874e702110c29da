"""The reference of the command line: the help of every command, as the program prints it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from farm.cli import cli

MARK = "<!-- commands -->"
WIDTH = 92


def commands(
    command: click.Command = cli, name: str = "farm"
) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, `farm sweep plot`; a group comes before its own."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name, **command.context_settings)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from commands(found, f"{name} {inner}")


def help_of(name: str, command: click.Command) -> str:
    """Return what `NAME --help` prints."""
    settings = {**command.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    settings.setdefault("help_option_names", ["-h", "--help"])
    with click.Context(command, info_name=name, **settings) as context:
        return command.get_help(context)


def reference() -> str:
    """Return a section for each command: those of groups are a level lower."""
    return "\n\n".join(
        f"{'#' * max(2, len(name.split()))} {name}\n\n```text\n{help_of(name, command)}\n```"
        for name, command in commands()
    )


def with_commands(page: str) -> str:
    """Return the text of a page with the reference in place of its mark."""
    return page.replace(MARK, reference()) if MARK in page else page
