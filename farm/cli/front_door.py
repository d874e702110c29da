"""Runs a front door in this process, from its start to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import click
import uvloop

from farm.cli import signals
from farm.cli.url import with_token
from farm.dispatcher.first_worker import FirstWorker
from farm.errors import FarmError
from farm.machine.addresses import is_loopback
from farm.machine.garbage import (
    search_no_more,
    search_now_and_then,
    search_young_in_time,
    search_young_only,
)
from farm.machine.keeper import REFUSED
from farm.machine.keeper_line import KeeperLine, keeper
from farm.machine.resources import keep_freed_memory
from farm.monitoring import news
from farm.provision.batch.plan import ClusterPlan
from farm.provision.local.supervisor import WorkersFailed
from farm.server.farm import Farm
from farm.settings import Settings
from farm.wording import timespan

SOON_S = 2.0
"""Most models are loaded within this time, so their names can stand in the first line."""


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
    for number in signals.ending():
        loop.add_signal_handler(number, ending.signalled)
    if line is not None:
        faulthandler.enable()  # a crash in C code leaves a traceback on stderr
        line.on_stop(ending.keeper_asks, ending.hurry.set)
    stopped = loop.create_task(ending.stop.wait())
    tasks: list[asyncio.Task[None]] = []
    try:
        # Not broken off: the jobs of a farm that was killed here end only with one that has them.
        await farm.start(on_stop=ending.asked)
        tasks.append(loop.create_task(_tell(farm)))
        ready = loop.create_task(farm.ready())
        await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
        ready.cancel()
    except Exception as error:
        for task in tasks:
            task.cancel()
        if line is not None and line.restarts:
            _leave_to_the_next(error, line)
        raise
    if line is not None:
        line.serves()
    searches = search_now_and_then(farm.dispatcher.stages.calls_open), search_young_in_time()
    tasks += map(loop.create_task, searches)
    failed = loop.create_task(farm.own.wait_failed())
    await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if line is not None:
        line.ends()
    for task in tasks:
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


async def _tell(farm: Farm) -> None:
    """Print where the farm serves, what it waits for while models are unknown, and then these."""
    first, began = farm.dispatcher.first_worker, time.monotonic()
    if first.expected.may_come and first.waits_for():
        await _changed(first, SOON_S)
    _print(partial(_announce, farm))
    pause_s = SOON_S
    while reason := first.waits_for():
        if not await _changed(first, pause_s):
            pause_s *= 2
            waited = timespan(time.monotonic() - began)
            _print(partial(click.echo, f"waiting for {waited}: {reason}", err=True))
        elif farm.dispatcher.models():
            _print(partial(click.echo, _served(farm)))
    if not news.log.isEnabledFor(logging.INFO):  # only now: the first worker needs no line
        news.log.setLevel(logging.INFO)


async def _changed(first: FirstWorker, within_s: float) -> bool:
    """Return whether more models are known, at the latest after `within_s` seconds."""
    first.changed.clear()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(first.changed.wait(), within_s)
    return first.changed.is_set()


def _print(line: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # a full disk, or a reader that has gone, ends no farm
        line()


def _served(farm: Farm) -> str:
    names = ", ".join(farm.dispatcher.models()) or "no model yet"
    return f"farm serves {names} at {farm.folder.connection.url}"


def _announce(farm: Farm) -> None:
    """Print what the farm serves and where."""
    connection = farm.folder.connection
    click.echo(_served(farm))
    if farm.settings.unix:
        click.echo(f"HTTP at unix:{farm.settings.unix.absolute()}")
    if connection.grpc:
        tls = " with TLS" if farm.settings.grpc_tls_cert else ""
        click.echo(f"gRPC for KServe v2 clients{tls} at {connection.grpc}")
    for line in farm.announced:
        click.echo(line)
    click.echo(f"connection file {farm.folder.for_clients.absolute()}")
    if farm.plan is not None:
        system = farm.plan.system.title
        click.echo(f"{system} jobs come with demand: farm status --to {farm.settings.dir}")
    if not is_loopback(farm.settings.host):
        # Others may read a file that holds our output, such as that of a job: show no token there.
        how = with_token(connection) if sys.stdout.isatty() else f"farm url {farm.settings.dir}"
        click.echo(f"clients elsewhere: {how}")
