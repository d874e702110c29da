"""Runs a front door in this process, from its start to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click
import uvloop

from farm.cli import signals
from farm.cli.url import with_token
from farm.errors import FarmError
from farm.machine.addresses import is_loopback
from farm.machine.freed_memory import keep_freed_memory
from farm.machine.keeper import REFUSED
from farm.machine.keeper_line import KeeperLine, keeper
from farm.monitoring import news
from farm.provision.batch.plan import ClusterPlan
from farm.provision.local.supervisor import WorkersFailed
from farm.server.farm import Farm
from farm.server.garbage import (
    search_no_more,
    search_now_and_then,
    search_young_in_time,
    search_young_only,
)
from farm.settings import Settings


def run(models: Sequence[str], settings: Settings, plan: ClusterPlan | None) -> int:
    """Serve until Ctrl-C, SIGTERM or the keeper's word; return the exit status."""
    line = keeper()
    search_young_only()
    keep_freed_memory()
    try:
        with signals.restored():
            return uvloop.run(_serve(Farm(models, settings, plan=plan)))
    except (WorkersFailed, FarmError) as error:
        if error.detail:
            click.echo(error.detail, err=True)
        if line is not None:
            line.fails(str(error))
        raise click.ClickException(str(error)) from None
    except Exception:
        if line is not None:
            line.fails(traceback.format_exc(limit=-1, chain=False))
        raise
    finally:
        search_no_more()


class _Ending:
    """The requests of signals, keeper and owner: an end in order, and then to hurry."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._asked_by_keeper = False

    def signalled(self) -> None:
        """Stop, or hurry if the end has begun; but once for a signal that the keeper got too."""
        begun, self._asked_by_keeper = self.stop.is_set() and not self._asked_by_keeper, False
        (self.hurry if begun else self.stop).set()

    def asked(self, now: bool) -> None:
        """Stop, or hurry: the owner asks over a connection."""
        self.stop.set()
        if now:
            self.hurry.set()

    def keeper_asks(self) -> None:
        """Stop; the signal may have come here before."""
        self._asked_by_keeper = not self.stop.is_set()
        self.stop.set()


async def _serve(farm: Farm) -> int:
    loop = asyncio.get_running_loop()
    line = keeper()
    ending = _Ending()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.signalled)
    if line is not None:
        faulthandler.enable()  # a crash in C code leaves a traceback on stderr
        line.on_stop(ending.keeper_asks, ending.hurry.set)
    farm.on_stop = ending.asked
    stopped = loop.create_task(ending.stop.wait())
    started = loop.create_task(farm.start())
    await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        # The jobs of a farm that was killed here end only with one that has taken them over.
        taking_over = loop.create_task(farm.took_over.wait())
        await asyncio.wait({started, taking_over}, return_when=asyncio.FIRST_COMPLETED)
        taking_over.cancel()
        started.cancel()
        await asyncio.wait({started})
        if started.cancelled() or started.exception() is not None:
            return 130
    error = started.exception()
    if error is not None and line is not None and line.restarts:
        _leave_to_the_next(error, line)
    started.result()
    if line is not None:
        line.serves()
    with contextlib.suppress(OSError):  # a full disk, or a reader that has gone, ends no farm
        _announce(farm)
    if not news.log.isEnabledFor(logging.INFO):  # from now on: the first worker is no news
        news.log.setLevel(logging.INFO)
    searches = search_now_and_then(farm.dispatcher.calls_open), search_young_in_time()
    tidying = [loop.create_task(search) for search in searches]
    failed = loop.create_task(farm.wait_failed())
    await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if line is not None:
        line.ends()
    for task in tidying:
        task.cancel()
    ending.stop.set()
    hurry = loop.create_task(ending.hurry.wait())
    with contextlib.suppress(OSError):
        click.echo("farm stops; Ctrl-C again to hurry", err=True)
    stopping = loop.create_task(farm.stop())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        farm.hurry()
    await stopping
    hurry.cancel()
    if failed.done():
        failed.result()
    return 0


def _leave_to_the_next(error: BaseException, line: KeeperLine) -> NoReturn:
    """End at once, as in a crash: an orderly end would end workers and jobs as well."""
    known = isinstance(error, WorkersFailed | FarmError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    line.fails(text)
    with contextlib.suppress(OSError):
        if known:
            click.echo(f"farm: error: {text}", err=True)
        else:
            traceback.print_exception(error)
        sys.stderr.flush()
    os._exit(REFUSED)


def _announce(farm: Farm) -> None:
    """Print what the farm serves and where."""
    connection = farm.connection
    names = ", ".join(farm.dispatcher.models()) or "no model yet"
    click.echo(f"farm serves {names} at {connection.url}")
    if farm.settings.unix:
        click.echo(f"HTTP at unix:{farm.settings.unix.absolute()}")
    if connection.grpc:
        tls = " with TLS" if farm.settings.grpc_tls_cert else ""
        click.echo(f"gRPC for KServe v2 clients{tls} at {connection.grpc}")
    for line in farm.announced:
        click.echo(line)
    click.echo(f"connection file {farm.connection_file.absolute()}")
    if farm.batch_system:
        click.echo(
            f"{farm.batch_system} jobs come with demand: farm status --to {farm.settings.dir}"
        )
    if not is_loopback(farm.settings.host):
        # Others may read a file that holds our output, such as that of a job: show no token there.
        how = with_token(connection) if sys.stdout.isatty() else f"farm url {farm.settings.dir}"
        click.echo(f"clients elsewhere: {how}")
