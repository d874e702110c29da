"""The command line: `main` is the program `farm`, and COMMANDS names the module of each verb."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from farm.cli import exits
from farm.cli.groups import CommandGroup
from farm.errors import FarmError, printable
from farm.version import __version__
from farm.wording import on_command_line

COMMANDS = {
    "init": "farm.cli.init:init",
    "serve": "farm.cli.serve:serve",
    "worker": "farm.cli.worker:worker",
    "call": "farm.cli.call:call",
    "sweep": "farm.cli.sweep:sweep",
    "experiment": "farm.cli.experiment:experiment",
    "record": "farm.cli.record:record",
    "status": "farm.cli.status:status",
    "failures": "farm.cli.failures:failures",
    "top": "farm.cli.top:top",
    "stop": "farm.cli.stop:stop",
    "doctor": "farm.cli.doctor:doctor",
    "cancel": "farm.cli.owner:cancel",
    "logs": "farm.cli.logs:logs",
    "drain": "farm.cli.owner:drain",
    "restart": "farm.cli.owner:restart",
    "url": "farm.cli.url:url",
    "launcher": "farm.cli.launcher:launcher",
}
"""Maps each command to its module and function. A module is imported when its command is used,
which keeps `farm --help` fast; the docstring of `cli` therefore has the summaries it prints."""


class _Commands(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print nothing: the list would import all commands, and the docstring of `cli` has one."""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{exits.table()}\n\nStart with: farm init model.py",
)
@click.version_option(__version__, prog_name="farm")
@click.option("-v", "--verbose", count=True, help="Log more to stderr; repeat to log everything.")
def cli(verbose: int) -> None:
    """Turn any model into a service that runs on many workers.

    \b
    init        Write a model to start from
    serve       Serve a model from this machine at one address for every client
    worker      Add workers to a running farm, from any machine
    call        Evaluate a model or a derivative once, for example to test it
    sweep       Evaluate a model at many points and write one HDF5 file
    experiment  Choose points one after another: ask, evaluate, tell
    record      Show, export, merge and import records of evaluations
    status      Show the workers, queues and calls of a farm
    failures    Show the calls that failed and the workers that were lost, by reason
    top         Show workers, queues, clients and failures of a farm, live
    stop        End a running farm in order, and wait until it has ended
    doctor      Check this machine, a farm and the batch system: what is wrong, what to do
    cancel      Cancel the waiting calls of a client
    logs        Print what a worker prints
    drain       Let a worker finish its calls and leave
    restart     Kill a worker that hangs, and start another in its place
    url         Print the address of a farm with its token, for clients elsewhere
    launcher    Print the script for sbatch that runs a farm in one SLURM job
    """
    import logging  # `farm --help` does not come here

    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with a status of `exits.TABLE`; mistakes print one line to stderr."""
    try:
        status = run(arguments)
    except Exception:
        import traceback

        traceback.print_exc()
        status = exits.FAULT
    sys.exit(status)


def run(arguments: list[str] | None = None) -> int:
    """Run a command like `main`, but return the exit status."""
    try:
        own = sys.argv[1:] if arguments is None else None
        with on_command_line():
            status: Any = cli.main(args=arguments, prog_name="farm", standalone_mode=False, obj=own)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        return exits.USAGE
    except click.ClickException as error:
        known = error.status if isinstance(error, exits.VerbFailed) else exits.USAGE
        return _complain(error.format_message(), known)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", exits.INTERRUPTED)
    except _mistakes() as error:
        return _complain(str(error), exits.status_of(error))
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    except OSError as error:
        if not (line := exits.in_one_line(error)):
            raise
        return _complain(line, exits.USAGE)
    return status if isinstance(status, int) else exits.DONE


def _mistakes() -> tuple[type[Exception], ...]:
    """Return the errors that are one line for the user; called only once a command has failed."""
    from farm.settings import SettingsError
    from farm.sweep.errors import SweepError

    return FarmError, SettingsError, SweepError


def _complain(text: str, status: int) -> int:
    click.echo(f"farm: error: {' '.join(printable(text).split())}", err=True)
    return status
