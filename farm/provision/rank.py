"""The program of every MPI rank: joins its group, loads the models, runs what rank 0 passes on.

Rank 0 of a group is the worker that dials in; a second thread of it does the talking while its
main thread, like that of every other rank, waits for work. Started by a supervisor's launcher, or
by a user's: `srun farm worker MODEL --mpi 4`.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.errors import ModelFailed
from farm.model import Model
from farm.provision.process import (
    EXIT_NOT_LOADED,
    Watch,
    log_to_stderr,
    parser_of,
    serve_models,
)
from farm.provision.rank_lines import VARIABLE, Lifeline, Talk
from farm.worker.group import (
    EXIT_RANK_LOST,
    LOOK_EVERY_S,
    GroupModel,
    Hub,
    Meeting,
    Member,
)
from farm.worker.load import LoadError, load_models
from farm.worker.mpi import EXIT_STUCK, WorldError, join_world, told_size

DRAIN_AFTER_S = 1.5 * LOOK_EVERY_S
"""When a rank dies `srun -K` sends SIGTERM to the others, and the hub sees within LOOK_EVERY_S that
it is gone. Were the signal a drain at once, a call that kills ranks would run again for ever."""


class Rank:
    """This process as one rank: its models, and how it does a piece of work."""

    def __init__(self, specs: Sequence[str], comm: Any) -> None:
        self.models: Mapping[str, Model] = {}
        self._specs = specs
        self._comm = comm

    def perform(self, what: str, model: str, arguments: Sequence[Any]) -> Any:
        """`load` the models, or call a method of one."""
        if what == "load":
            try:
                self.models = load_models(self._specs, comm=self._comm)
            except LoadError as error:
                raise ModelFailed(str(error), detail=error.detail) from None
            return None
        return getattr(self.models[model], what)(*arguments)


class Host:
    """The second thread of rank 0: serves the group's models until drained, then ends the group.

    code: the exit status, once the thread has ended.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        hub: Hub,
        member: Member,
        rank: Rank,
        watch: Watch,
        talk: Talk | None,
    ) -> None:
        self.code = EXIT_STUCK
        self._arguments = arguments
        self._hub, self._member, self._rank = hub, member, rank
        self._watch, self._talk = watch, talk
        self._running: list[int] = []
        hub.on_broken = self._stuck
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self.code = serve_models(
                self._load,
                self._arguments,
                self._say,
                self._watch,
                on_start=self._on_start,
                labels={"ranks": str(self._arguments.ranks)},
            )
            if not self._hub.broken and self.code in (0, EXIT_NOT_LOADED):
                self._hub.end()
                return
        except BaseException:
            traceback.print_exc()
        # Ranks that hang in MPI cannot be told to end: this process ends as it is.
        self._leave(self.code or EXIT_STUCK)

    def _load(self) -> Mapping[str, Model]:
        self._hub.meet()
        self._hub.perform("load")
        self._hub.time_limit_s = self._arguments.time_limit  # of calls: loading may take longer
        return {
            name: GroupModel(name, model, self._hub, self._member)
            for name, model in self._rank.models.items()
        }

    def _say(self, **facts: object) -> None:
        if "done" in facts and self._hub.broken:
            return  # no goodbye: another group has to take this one's place
        if self._talk is not None:
            self._talk.say(**facts)
        elif "error" in facts:
            print(f"farm: error: {facts['error']}", file=sys.stderr, flush=True)

    def _on_start(self, tasks: Sequence[int], row: int = 0) -> None:
        self._running = list(tasks)
        if self._talk is not None:
            self._talk.say(running=self._running, row=row)

    def _stuck(self) -> None:
        if len(self._running) > 1:
            # Of calls that share an evaluation only one may be guilty: lost, they run alone.
            self._leave(EXIT_RANK_LOST)
        self._watch.ask_to_drain()  # the failed call is answered, the rest handed back

    def _leave(self, code: int) -> None:
        self._say(code=code)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(arguments: argparse.Namespace, *, size: int) -> int:
    """Be one rank of a world of `size` until the group ends; the exit status.

    An exception that gets out ends the whole world, as `python -m mpi4py` does.
    """
    address = os.environ.get(VARIABLE) if arguments.supervised else None
    if arguments.supervised and address is None:
        print(
            f"farm: error: {VARIABLE} is not set here: the launcher does not pass the environment "
            f"on; Open MPI's mpiexec does with -x {VARIABLE}",
            file=sys.stderr,
        )
        return EXIT_NOT_LOADED
    faulthandler.enable()  # a crash in C code leaves a Python traceback in the log
    log_to_stderr()
    lifeline = None if address is None else Lifeline(address)
    watch = Watch(
        None if lifeline is None else lifeline.fileno(),
        patience_s=DRAIN_AFTER_S,
        interruptible=lifeline is None,
    )
    watch.start()
    try:
        comm = join_world(arguments.ranks, size=size)
    except WorldError as error:
        if address is not None:
            Talk(address, watch.ask_to_drain).say(error=str(error))
        print(f"farm: error: {error}", file=sys.stderr, flush=True)
        return EXIT_NOT_LOADED
    try:
        if lifeline is not None:
            lifeline.name(comm.rank)
        return _serve(arguments, comm, watch, address, lifeline)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _serve(
    arguments: argparse.Namespace,
    comm: Any,
    watch: Watch,
    address: str | None,
    lifeline: Lifeline | None,
) -> int:
    def following() -> None:
        if lifeline is not None:
            lifeline.follow()

    # At the first use of these mpi4py makes communicators, holding the interpreter as it waits.
    hosts = comm.allgather(socket.gethostname())
    comm.allreduce(0)
    hub = Hub(hosts, on_following=following) if comm.rank == 0 else None
    meeting: Meeting = comm.bcast(None if hub is None else hub.meeting)
    member = Member(meeting, comm.rank, following)
    rank = Rank(arguments.models, comm)
    if hub is None:
        member.serve(rank.perform)
        return 0
    talk = None if address is None else Talk(address, watch.ask_to_drain)
    host = Host(arguments, hub, member, rank, watch, talk)
    host.start()
    member.serve(rank.perform)
    host.join()
    return host.code


def serve_rank(
    models: Sequence[str], connect: Path, *, ranks: int, time_limit_s: float | None
) -> int:
    """Be one rank of the world that a user's launcher has started; the exit status."""
    arguments = parser_of("farm worker").parse_args(
        [*models, "--connect", str(connect)],
        argparse.Namespace(supervised=False, ranks=ranks, time_limit=time_limit_s),
    )
    return run(arguments, size=told_size())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank that a supervisor's launcher has started; the exit status."""
    parser = parser_of("farm.provision.rank")
    parser.add_argument("--ranks", type=int, required=True)
    arguments = parser.parse_args(argv, argparse.Namespace(supervised=True, time_limit=None))
    return run(arguments, size=arguments.ranks)


if __name__ == "__main__":
    sys.exit(main())
