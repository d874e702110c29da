"""The program of every MPI rank: joins its group, loads the models, runs the calls from rank 0.

Rank 0 of a group is the worker that connects to the farm; its second thread does the communication
while its main thread, like that of every other rank, waits for work. It is started by its parent
(`rank_parent.py`) under a supervisor's launcher, or by the user: `srun farm worker MODEL --mpi 4`.
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
from farm.provision.local.process import (
    EXIT_NOT_LOADED,
    ModelProcess,
    Watch,
    parser_of,
    serve_models,
)
from farm.provision.local.rank_lines import RankLifeline, Talk
from farm.provision.local.rank_parent import VARIABLE
from farm.provision.local.worker_log import log_to_stderr
from farm.worker.loader import LoadError, load_models
from farm.worker.mpi.group import EXIT_RANK_LOST, LOOK_EVERY_S, GroupModel, Hub, Meeting, Member
from farm.worker.mpi.world import EXIT_STUCK, WorldError, join_world, told_size

DRAIN_AFTER_S = 1.5 * LOOK_EVERY_S
"""When a rank dies `srun -K` sends SIGTERM to the others, and the hub sees within LOOK_EVERY_S that
it is gone. If the signal drained at once, a call that kills ranks would be retried for ever.
"""


class Rank:
    """This process as one rank: its models, and how it does a piece of work for its group."""

    def __init__(self, specs: Sequence[str], comm: Any, member: Member) -> None:
        self.models: Mapping[str, Model] = {}
        self.member = member
        self._specs = specs
        self._comm = comm

    def execute(self, what: str, model: str, arguments: Sequence[Any]) -> Any:
        """Run `load` to load the models, or call a method of one."""
        if what == "load":
            try:
                self.models = load_models(self._specs, comm=self._comm)
            except LoadError as error:
                raise ModelFailed(str(error), detail=error.detail) from None
            return None
        return getattr(self.models[model], what)(*arguments)


class RankHost(ModelProcess):
    """The second thread of rank 0: serves the group's models until drained, then ends the group.

    thread: it, to be started; code: the exit status, once it has ended.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        hub: Hub,
        rank: Rank,
        watch: Watch,
        talk: Talk | None,
        pids: Sequence[int] = (),
    ) -> None:
        """pids: the ranks on the host of rank 0, whose use is reported."""
        self.code = EXIT_STUCK
        self._pids = pids
        self._arguments = arguments
        self._hub, self._rank = hub, rank
        self._watch, self._talk = watch, talk
        self._running: list[int] = []
        hub.on_broken = self._stuck
        self.thread = threading.Thread(target=self._run, name="host", daemon=True)

    def _run(self) -> None:
        try:
            labels = {"ranks": str(self._arguments.ranks)}
            self.code = serve_models(
                self, self._arguments, self._watch, labels=labels, pids=self._pids
            )
            if not self._hub.broken and self.code in (0, EXIT_NOT_LOADED):
                self._hub.end()
                return
        except BaseException:
            traceback.print_exc()
        # Ranks that hang in MPI cannot be asked to end: exit without them.
        self._end(self.code or EXIT_STUCK)

    def load(self) -> Mapping[str, Model]:
        """Let every rank load the models. Raises FarmError."""
        self._hub.meet()
        self._hub.execute("load")
        self._hub.time_limit_s = self._arguments.time_limit  # of calls: loading may take longer
        return {
            name: GroupModel(name, model, self._hub, self._rank.member)
            for name, model in self._rank.models.items()
        }

    def say(self, **facts: object) -> None:
        """Report facts to the supervisor, if there is one."""
        if "done" in facts and self._hub.broken:
            return  # no goodbye: another group has to replace this one
        if self._talk is not None:
            self._talk.say(**facts)
        elif "error" in facts:
            print(f"farm: error: {facts['error']}", file=sys.stderr, flush=True)

    def runs(self, tasks: Sequence[int], row: int = 0, /) -> None:
        """Note what runs, and report it."""
        self._running = list(tasks)
        if self._talk is not None:
            self._talk.say(running=self._running, row=row)

    def _stuck(self) -> None:
        if len(self._running) > 1:
            # Only one of the calls in a batch may be at fault: after a loss each of them runs
            # alone.
            self._end(EXIT_RANK_LOST)
        self._watch.ask_to_drain()  # the failed call is answered, the others recalled

    def _end(self, code: int) -> None:
        self.say(code=code)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(arguments: argparse.Namespace, *, size: int) -> int:
    """Be one rank of a world of `size` until the group ends; return the exit status.

    An uncaught exception ends the whole world, as under `python -m mpi4py`.
    """
    address = os.environ[VARIABLE] if arguments.supervised else None
    # A crash in C code leaves a Python traceback in the log. The other threads are farm's own.
    faulthandler.enable(all_threads=False)
    log_to_stderr()
    lifeline = RankLifeline(arguments.lifeline) if arguments.supervised else None
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
    lifeline: RankLifeline | None,
) -> int:
    def following() -> None:
        if lifeline is not None:
            lifeline.follow()

    # On first use of these mpi4py creates communicators, holding the interpreter while it waits.
    ranks: list[tuple[str, int]] = comm.allgather((socket.gethostname(), os.getpid()))
    hosts = [host for host, _ in ranks]
    comm.allreduce(0)
    hub = Hub(hosts, on_following=following) if comm.rank == 0 else None
    meeting: Meeting = comm.bcast(None if hub is None else hub.meeting)
    rank = Rank(arguments.models, comm, Member(meeting, comm.rank, following))
    if hub is None:
        rank.member.serve(rank.execute)
        return 0
    talk = None if address is None else Talk(address, watch.ask_to_drain)
    here = [pid for host, pid in ranks if host == hosts[0]]
    host = RankHost(arguments, hub, rank, watch, talk, here)
    host.thread.start()
    rank.member.serve(rank.execute)
    host.thread.join()
    return host.code


def serve_rank(
    models: Sequence[str],
    connect: Path,
    *,
    ranks: int,
    time_limit_s: float | None,
    ends_at: float | None = None,
) -> int:
    """Be one rank of a world that the user's launcher has started; return the exit status.

    ends_at: Unix time at which the machine is taken away; None: the end of the SLURM job, if any.
    """
    end = [] if ends_at is None else ["--ends-at", str(ends_at)]
    arguments = parser_of("farm worker").parse_args(
        [*models, "--connect", str(connect), *end],
        argparse.Namespace(supervised=False, ranks=ranks, time_limit=time_limit_s),
    )
    return run(arguments, size=told_size())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank that a supervisor's launcher has started; return the exit status."""
    parser = parser_of("farm.provision.local.rank")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True, metavar="DESCRIPTOR")
    arguments = parser.parse_args(argv, argparse.Namespace(supervised=True, time_limit=None))
    return run(arguments, size=arguments.ranks)


if __name__ == "__main__":
    sys.exit(main())
