"""Options and checks that several commands share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import click
import orjson

from farm.machine.resources import allowed_cpus
from farm.settings import SETTINGS, choices_of
from farm.wording import counted

Command = Callable[..., Any]

ANY_FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

TARGET = "URL|FILE|DIR"
TARGET_HELP = (
    "The farm: its URL, its connection file farm.json, or its run folder. "
    "Default: $FARM_CONNECTION, $FARM_URL, then ./farm-run."
)

target_option = click.option("--to", "target", metavar=TARGET, help=TARGET_HELP)


def target_argument(command: Command) -> Command:
    """Add `[TARGET]` and `--to`, two ways to name the farm; the command receives `target`."""

    @functools.wraps(command)
    def with_target(*, named: str | None, to: str | None, **values: Any) -> Any:
        if named is not None and to is not None:
            raise click.UsageError(f"expected one farm, got {named!r} and --to {to!r}")
        return command(target=named if to is None else to, **values)

    asked: Command = click.option("--to", metavar=TARGET, help=TARGET_HELP)(with_target)
    return click.argument("named", metavar="[TARGET]", required=False)(asked)


def json_option(help: str) -> Callable[[Command], Command]:
    """Return the option `--json`; the command receives `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def print_json(value: Any) -> None:
    """Print an answer of a farm as indented JSON."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))


MOST_PER_CPU = 64
"""Worker processes per CPU that start without a question: more starve each other at the start."""

MANY = "farm.many"
"""Where click keeps whether `--many` was given."""


def workers_option(name: str, least: int, help: str) -> Callable[[Command], Command]:
    """Add `-n`, `--workers` as the parameter `name`, and `--many`, which allows any number.

    A number that this machine cannot bear is asked about on a terminal, and refused elsewhere.
    """

    def checked(ctx: click.Context, parameter: click.Parameter, count: int | None) -> int | None:
        cpus = allowed_cpus()
        if count is None or count <= MOST_PER_CPU * cpus or ctx.meta[MANY]:
            return count
        text = f"{counted(count, 'worker')} on {counted(cpus, 'CPU')} of this machine"
        if not is_interactive():
            raise click.UsageError(
                f"{text}, expected at most {MOST_PER_CPU * cpus}; --many starts them anyway"
            )
        click.confirm(f"{text}: start them?", abort=True, err=True)
        return count

    def allow(ctx: click.Context, parameter: click.Parameter, many: bool) -> None:
        ctx.meta[MANY] = many

    def with_options(command: Command) -> Command:
        command = click.option(
            "--many",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=allow,
            help=f"Start even more than {MOST_PER_CPU} workers for each CPU.",
        )(command)
        number = click.option(
            "-n",
            "--workers",
            name,
            type=click.IntRange(least),
            metavar="COUNT",
            callback=checked,
            help=help,
        )
        decorated: Command = number(command)
        return decorated

    return with_options


def is_interactive() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def setting_options(
    *names: str, unset: Container[str] = (), envvar: str | None = None
) -> Callable[[Command], Command]:
    """Add the options of these settings to a command, which receives the values by their names.

    unset: settings that are None if nothing sets them, as their default depends on others.
    """

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _setting_option(name, envvar, is_unset=name in unset)(command)
        return command

    return add


def _setting_option(
    name: str, envvar: str | None, *, is_unset: bool
) -> Callable[[Command], Command]:
    about = SETTINGS[name]
    kind = about["type"].removesuffix(" | None")
    flag = "--" + name.removesuffix("_s").replace("_", "-")
    least, above = about["least"], about["above"]
    types: dict[str, Any] = {
        "Path": click.Path(file_okay=name != "dir", dir_okay=name == "dir", path_type=Path),
        "int": click.IntRange(least) if least else int,
        "float": click.FloatRange(above, min_open=True) if above is not None else float,
        "bool": bool,
    }
    choices = choices_of(name)
    is_plain = about["default"] not in (None, False, ()) and "[default" not in about["help"]
    return click.option(
        f"{flag}/--no-{flag[2:]}" if kind == "bool" else flag,
        name,
        type=click.Choice(choices) if choices else types.get(kind, str),
        multiple=kind.startswith("tuple"),
        default=None if is_unset else about["default"],
        show_default=is_plain,
        envvar=envvar,
        metavar=about["metavar"] or None,
        help=about["help"],
    )


def report_option(source: str) -> Callable[[Command], Command]:
    """The option `-o`, `--out` of a command that writes a report.

    source: names, in the help text, the file whose name the report takes by default.
    """
    return click.option(
        "-o",
        "--out",
        type=ANY_FILE,
        help=f"File for the report.  [default: {source} with the ending .html]",
    )


def new_file(path: Path) -> Path:
    """Return `path`, which must not exist. Raises UsageError."""
    if os.path.lexists(path):
        raise click.UsageError(f"{path} exists; name another file")
    return path
