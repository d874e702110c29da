"""One model process: loads its models, connects, runs calls. `supervisor.py` starts it.

With `--forks` it is the process that others are forked from, see `farm.machine.forking`.

Besides the main thread, which runs the models, a thread watches for SIGTERM and SIGUSR1, which
drain, and for the end of the supervisor, which ends this process too.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import math
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from farm.call import WorkerInfo
from farm.errors import FarmError, Unavailable
from farm.machine.forking import forked
from farm.machine.resources import keep_freed_memory
from farm.model import Model
from farm.provision.batch import allocation
from farm.provision.local.record import OWN_MEMORY, RunRecord
from farm.provision.local.worker_log import log_to_stderr
from farm.transports.connection import read_worker_connection
from farm.wire.usage import ENDS_RUNS
from farm.worker.host.host import EXIT_ORPHANED, WorkerHost, WorkerProcess
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner
from farm.worker.running import name_worker

REPLACED = "its call was answered by another worker"

EXIT_NOT_LOADED = 78
"""Exit status if the models cannot be loaded (EX_CONFIG): a retry would end the same way."""


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
        self.listen()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def listen(self) -> None:
        """Let signals ask for a drain, in the main thread."""
        for number in self._drains:
            signal.signal(number, self._signalled)

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


class ModelProcess(WorkerProcess, ABC):
    """A process that loads and serves models, for a supervisor."""

    start_s = math.inf  # a group of ranks takes too long to start

    @abstractmethod
    def load(self) -> Mapping[str, Model]:
        """Load the models. Raises LoadError, FarmError."""

    @abstractmethod
    def say(self, **facts: object) -> None:
        """Report facts: `error`, why loading failed; `worker`, the name; `done`, a goodbye.

        `joined`: the farm has accepted it; `doom`: why it ends although another process is to take
        its place.
        """

    def loaded(self) -> None:
        """Note that the models are loaded and have described themselves."""

    def leave(self, *, drains: bool) -> None:
        """End: the model may run for hours, and its answer has been given by another worker."""
        self.say(**({"done": True} if drains else {"doom": REPLACED}))
        os._exit(0)


class OwnProcess(RunRecord, ModelProcess):
    """This process, which records what runs where its supervisor reads it."""

    def __init__(self, arguments: argparse.Namespace, watch: Watch) -> None:
        super().__init__(OWN_MEMORY if arguments.record is None else arguments.record)
        self._specs: Sequence[str] = arguments.models
        self._status: int | None = arguments.status
        self._watch = watch

    def load(self) -> Mapping[str, Model]:
        """Load the models. Raises LoadError."""
        # A drain would be a goodbye; so this process ends at once, and another takes its place.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            return load_models(self._specs)
        finally:
            self._watch.listen()

    def loaded(self) -> None:
        """Measure how long the start took."""
        self.start_s = age_s()

    def say(self, **facts: object) -> None:
        """Write one JSON object per line, for the supervisor, if there is one."""
        if self._status is not None:
            with contextlib.suppress(OSError):
                os.write(self._status, json.dumps(facts).encode() + b"\n")


def serve_models(
    process: ModelProcess,
    arguments: argparse.Namespace,
    watch: Watch,
    *,
    labels: Mapping[str, str] | None = None,
    pids: Sequence[int] = (),
) -> int:
    """Serve the models that `process` loads until drained; return the exit status.

    pids: the processes of this machine whose use is reported; by default this one.
    """
    try:
        runner = Runner(process.load())
        infos = runner.models()
    except (LoadError, FarmError) as error:
        if error.detail:
            print(error.detail, file=sys.stderr)
        process.say(error=str(error))
        return EXIT_NOT_LOADED
    process.loaded()
    abilities = {ENDS_RUNS: "yes"} if process.start_s < math.inf else {}
    host = socket.gethostname()
    ends_at = allocation.end_time() if arguments.ends_at is None else arguments.ends_at
    info = WorkerInfo(
        name=f"{host}/{os.getpid()}-{secrets.token_hex(2)}",
        models=infos,
        host=host,
        pid=os.getpid(),
        device=arguments.device,
        ends_at=None if ends_at == math.inf else ends_at,
        labels=allocation.labels() | abilities | dict(labels or {}),
    )
    name_worker(info.name)
    try:
        worker = WorkerHost(
            runner,
            read_worker_connection(arguments.connect),
            info,
            process=process,
            lost_after_s=arguments.lost_after,
            pids=pids,
        )
        process.say(worker=info.name)
        watch.call_on_drain(worker.drain)
        worker.run(lambda: process.say(joined=True))
    except Unavailable as error:
        print(f"farm: {error}", file=sys.stderr)
        return EXIT_ORPHANED
    finally:
        watch.call_on_drain(None)
    process.say(done=True)
    return 0


def age_s() -> float:
    """Return the seconds since this process started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


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


def load_the_rest(connect: str) -> None:
    """Import what a process imports besides this module, whatever its model.

    connect: its connection file.
    """
    importlib.import_module("importlib.abc")  # used by the loader of files
    with contextlib.suppress(FarmError):  # each process reports it
        connection = read_worker_connection(connect)
        if not connection.local or connection.host != socket.gethostname():
            import farm.transports.zmq.line  # noqa: F401  # so that it is loaded before forks


def main(argv: Sequence[str] | None = None) -> int:
    """Run one model process; return the exit status."""
    arguments = parsed(argv)
    if arguments.forks is not None:
        words = forked(arguments.forks, lambda: load_the_rest(arguments.connect))
        arguments = parsed(words)  # in each process that is forked
    for descriptor in (arguments.lifeline, arguments.status, arguments.record):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # not for programs that a model starts
    faulthandler.enable()  # a crash in C code leaves a Python traceback in the log
    log_to_stderr()
    keep_freed_memory()
    watch = Watch(arguments.lifeline)
    watch.start()
    process = OwnProcess(arguments, watch)
    exit_status = serve_models(process, arguments, watch)
    watch.end()
    return exit_status


if __name__ == "__main__":
    sys.exit(main())
