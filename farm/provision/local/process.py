"""One model process: loads its models, connects, runs calls. `supervisor.py` starts it.

With `--forks` it is the process that others are forked from, see `warm.py`.

Besides the main thread, which runs the models, a thread watches for SIGTERM and SIGUSR1, which
drain, and for the end of the supervisor, which ends this process too.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import math
import os
import secrets
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from farm.call import WorkerInfo
from farm.errors import FarmError, Unavailable
from farm.machine.freed_memory import keep_freed_memory
from farm.model import Model
from farm.provision.batch import allocation
from farm.provision.local import warm
from farm.provision.local.record import RunRecord
from farm.provision.local.worker_log import log_to_stderr
from farm.transports.connection import read_worker_connection
from farm.transports.worker_host import EXIT_ORPHANED, WorkerHost
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import OnStart, Runner
from farm.worker.running import name_worker

EXIT_NOT_LOADED = 78
"""Exit status if the models cannot be loaded (EX_CONFIG): a retry would end the same way."""


class SupervisorLine:
    """The line to the supervisor: one JSON object per line; does nothing without a supervisor."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def say(self, **facts: object) -> None:
        """Report facts: `error`, why loading failed; `worker`, the name; `done`, a goodbye."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, json.dumps(facts).encode() + b"\n")


class Watch:
    """A thread that handles signals and the supervisor's end while the main thread is busy.

    Signals wake it through a pipe that the C part of the handler writes, so they are noticed while
    the main thread is inside C code that lets other threads run. patience_s: delay between a signal
    and the drain; interruptible: SIGINT drains too, if no supervisor handles it.
    """

    def __init__(
        self, lifeline: int | None, *, patience_s: float = 0.0, interruptible: bool = False
    ) -> None:
        self._lifeline = lifeline
        self._patience_s = patience_s
        self._drains = {signal.SIGTERM, signal.SIGUSR1}
        if interruptible:
            self._drains.add(signal.SIGINT)
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._lock = threading.RLock()  # reentrant: signals may come while it is held
        self._drain: Callable[[], None] | None = None
        self.asked = False

    def start(self) -> None:
        """Start, in the main thread."""
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        # Ctrl-C in a terminal and SLURM's signals reach all processes; the supervisor decides.
        # A handler, not SIG_IGN, which the programs that a model starts would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        for number in self._drains:
            signal.signal(number, self._signalled)
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # Written a second time for models that set their own wake-up descriptor, as asyncio does.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_end, bytes([number]))
        if not self._patience_s:
            # Before the main thread continues: it may be about to begin the next call.
            self.ask_to_drain()

    def call_on_drain(self, drain: Callable[[], None] | None) -> None:
        """Set the function to call on a drain request; call it at once if that was already made."""
        with self._lock:
            self._drain = drain
            if self.asked and drain is not None:
                drain()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        if self._lifeline is not None:
            poll.register(self._lifeline, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._lifeline:
                    # Nothing is ever sent on it: this is end of file, so the supervisor has ended.
                    if os.getpgrp() == os.getpid():
                        os.killpg(os.getpgrp(), signal.SIGKILL)
                    os._exit(EXIT_ORPHANED)
                numbers = os.read(self._read_end, 64)
                if self._drains.isdisjoint(numbers):
                    continue
                if not self._patience_s:
                    self.ask_to_drain()
                    continue
                timer = threading.Timer(self._patience_s, self.ask_to_drain)
                timer.daemon = True
                timer.start()

    def end(self) -> None:
        """Ignore signals from now on, in the main thread: the process is about to end.

        Python restores the default handlers as it exits; a signal after that would count as a
        crash.
        """
        for number in self._drains:
            signal.signal(number, signal.SIG_IGN)

    def ask_to_drain(self) -> None:
        """Request a drain, as a signal does; from any thread."""
        with self._lock:
            if not self.asked and self._drain is not None:
                self._drain()
            self.asked = True


def serve(arguments: argparse.Namespace, status: SupervisorLine, watch: Watch) -> int:
    """Load the models and serve them until drained; return the exit status."""
    record = RunRecord(arguments.record) if arguments.record is not None else None
    return serve_models(
        lambda: load_models(arguments.models),
        arguments,
        status.say,
        watch,
        on_start=None if record is None else record.write,
    )


def serve_models(
    load: Callable[[], Mapping[str, Model]],
    arguments: argparse.Namespace,
    say: Callable[..., None],
    watch: Watch,
    *,
    on_start: OnStart | None,
    labels: Mapping[str, str] | None = None,
    pids: Sequence[int] = (),
) -> int:
    """Serve the models that `load` returns until drained; return the exit status.

    pids: the processes of this machine whose use is reported; by default this one.
    """
    try:
        runner = Runner(load())
        infos = runner.models()
    except (LoadError, FarmError) as error:
        if error.detail:
            print(error.detail, file=sys.stderr)
        say(error=str(error))
        return EXIT_NOT_LOADED

    def leave() -> None:
        say(done=True)
        os._exit(0)  # the model may run for hours, and its answer has been given by another worker

    host = socket.gethostname()
    ends_at = allocation.end_time() if arguments.ends_at is None else arguments.ends_at
    info = WorkerInfo(
        name=f"{host}/{os.getpid()}-{secrets.token_hex(2)}",
        models=infos,
        host=host,
        pid=os.getpid(),
        device=arguments.device,
        ends_at=None if ends_at == math.inf else ends_at,
        labels=allocation.labels() | dict(labels or {}),
    )
    name_worker(info.name)
    try:
        worker = WorkerHost(
            runner,
            read_worker_connection(arguments.connect),
            info,
            on_start=on_start,
            leave=leave,
            lost_after_s=arguments.lost_after,
            pids=pids,
        )
        say(worker=info.name)
        watch.call_on_drain(worker.drain)
        worker.run()
    except Unavailable as error:
        print(f"farm: {error}", file=sys.stderr)
        return EXIT_ORPHANED
    finally:
        watch.call_on_drain(None)
    say(done=True)
    return 0


def parser_of(program: str) -> argparse.ArgumentParser:
    """Return the command-line parser of a process that serves models."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--connect", required=True, metavar="FILE")
    parser.add_argument("--device", default="")
    parser.add_argument("--ends-at", type=float, default=None, metavar="UNIX_TIME")
    parser.add_argument("--lost-after", type=float, default=60.0, metavar="SECONDS")
    return parser


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; the descriptors are those passed on by the supervisor."""
    parser = parser_of("farm.provision.local.process")
    for name in ("lifeline", "status", "record", "forks"):
        parser.add_argument(f"--{name}", type=int, default=None, metavar="DESCRIPTOR")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one model process; return the exit status."""
    arguments = parsed(argv)
    if arguments.forks is not None:
        arguments = parsed(
            warm.forked(arguments.forks, arguments.connect)
        )  # in each process that is forked
    for descriptor in (arguments.lifeline, arguments.status, arguments.record):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # not for programs that a model starts
    faulthandler.enable()  # a crash in C code leaves a Python traceback in the log
    log_to_stderr()
    keep_freed_memory()
    watch = Watch(arguments.lifeline)
    watch.start()
    exit_status = serve(arguments, SupervisorLine(arguments.status), watch)
    watch.end()
    return exit_status


if __name__ == "__main__":
    sys.exit(main())
