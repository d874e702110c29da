"""Groups of commands that suggest the right name for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable

import click


class CommandGroup(click.Group):
    """A group whose error for an unknown command names those with a similar name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and its arguments. Raises UsageError."""
        name = args[0]
        is_known = name.startswith("-") or self.get_command(ctx, name) is not None
        if not is_known and not ctx.resilient_parsing:
            raise click.UsageError(no_such_command(name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


def no_such_command(name: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown command, with the known ones that resemble it."""
    similar = similar_to(name, known)
    if similar:
        return f"No such command {name!r}; did you mean {' or '.join(map(repr, similar))}?"
    return f"No such command {name!r}; expected one of: {', '.join(known)}"


def similar_to(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that resemble `name`, the most similar first.

    One that differs only in its case is the only one.
    """
    names = list(known)
    same = [each for each in names if each.lower() == name.lower()]
    if same:
        return same
    from difflib import get_close_matches  # only a misspelt command needs it

    return get_close_matches(name.lower(), names)
