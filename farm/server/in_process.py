"""`farm.serve(...)`: runs a farm for the length of a block of a Python program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import uvloop

from farm.client import Client, connect
from farm.descriptors import Option, every
from farm.errors import FarmError
from farm.functions import check_form, served_function
from farm.machine.json_log import LOG_FORMAT
from farm.machine.private import TemporaryFolder
from farm.model import Model
from farm.provision.local.supervisor import WorkersFailed
from farm.provision.local.worker_log import BEGINS
from farm.server.farm import Farm
from farm.server.lifecycle import read_log
from farm.settings import SETTINGS, Settings, SettingsError, settings_of
from farm.transports.connection import Connection
from farm.wording import counted, short

LOOK_EVERY_S = 0.3
"""Interval at which the logs of workers are read for the terminal."""

LINES_AT_ONCE, LONGEST_LINE = 100, 1000
"""Most lines of all workers that one look prints, and most characters of a line."""

OF_FILES = ("time_limit_s", "mpi", "mpi_launch", "fork")
"""Settings without an effect where all models run in threads of this process."""

OF_DOORS = (
    *("unix", "grpc_port", "grpc_tls_cert", "grpc_tls_key", "auth", "allow_origin", "insecure"),
    *("max_body_bytes", "max_held_bytes", "non_finite"),
)
"""Settings without an effect where a farm serves no HTTP; so are all options of protocols."""


@contextlib.contextmanager
def serve(
    *models: str | Path | Model | type[Model] | Callable[..., Any],
    workers: int | None = None,
    port: int | None = None,
    dir: str | Path | None = None,
    output: Literal["show", "log"] = "show",
    **settings: Any,
) -> Iterator[Client]:
    """Run a farm of `models` on this machine for the length of the block; yield a client of it.

        with farm.serve("beam.py", workers=4) as client:
            tips = client.model("Beam").map(points)

    models: a name or file, as `farm serve` takes it, runs in `workers` processes; a Model, its
    class or a function runs in as many threads of this process. The annotations of a function have
    its sizes: float, or Annotated[np.ndarray, 3]. workers: None means one, or none with
    `dask="tcp://..."`, a Dask cluster that runs the named models. port: HTTP port for other
    clients, 0 for a free one; None: none, and no other protocol. dir: the run folder; None: a
    temporary one. output: "show" prints to stderr what worker processes print, such as `(worker 0)
    step 7`, at most some hundred lines a second; "log": it is only in `logs` of the run folder.
    settings: other `Settings`, and options of protocols such as `mip=["Beam=127.0.0.1:9000"]`.

    Raises Unavailable or WorkersFailed if the farm does not start, and SettingsError.
    """
    specs = [str(model) for model in models if isinstance(model, str | Path)]
    given = [
        model() if isinstance(model, type) and issubclass(model, Model) else model
        for model in models
        if not isinstance(model, str | Path)
    ]
    try:
        for name, number in (("workers", workers), ("port", port)):
            if not isinstance(number, int | None):
                raise SettingsError(f"{name} is {number!r}; expected a whole number")
        if output not in ("show", "log"):
            raise SettingsError(f"output is {output!r}; expected 'show' or 'log'")
        made = [each if isinstance(each, Model) else served_function(each) for each in given]
        for model in made:
            check_form(model)
    except (TypeError, ValueError) as error:
        raise short(error) from None
    objects = {model.name or type(model).__name__: model for model in made}
    if len(specs) + len(objects) < max(1, len(models)):
        raise ValueError(f"serve needs models, each with a name of its own; got {models}")
    if settings.get("dask") and objects:
        raise ValueError("a Dask cluster loads models itself: name them, such as 'model.py:Beam'")
    if settings.get("supervise"):
        raise SettingsError(
            "supervise is True; expected False in a program, which cannot be started again: use "
            "`farm serve --supervise`"
        )
    if workers is None:
        workers = 0 if settings.get("dask") else 1
    with contextlib.ExitStack() as stack:
        if dir is None:
            dir = stack.enter_context(TemporaryFolder("farm-"))
        # Of all variables this one counts in a program, too: those who run it collect its logs.
        log_format = {"log_format": os.environ.get(LOG_FORMAT, "text")}
        values = dict(dir=Path(dir), workers=workers, port=port or 0, **(log_format | settings))
        try:
            options = [option for protocol in every() for option in protocol.options]
            chosen = settings_of(values, options)
            if objects and not workers:
                raise SettingsError("workers is 0; expected the number of threads, 1 or more")
            if not specs:
                _refuse(chosen, OF_FILES, (), "a model in a file: others run in threads")
            if port is None:
                _refuse(chosen, OF_DOORS, options, "port beside it, 0 for a free one")
        except SettingsError as error:
            raise short(error) from None
        farm = Farm(specs, chosen, objects=objects, doors=port is not None)
        if output == "show" and specs:
            stack.enter_context(contextlib.closing(_Output(Path(dir) / "logs")))
        try:
            stack.enter_context(running(farm))
            client = stack.enter_context(connect(farm.folder.for_clients))
        except (FarmError, WorkersFailed) as error:  # raised in another thread
            raise short(error) from None
        yield client


def _refuse(
    settings: Settings, names: Sequence[str], options: Sequence[Option], expected: str
) -> None:
    """Raise SettingsError for one of these settings or options that is not its default."""
    defaults = {name: SETTINGS[name]["default"] for name in names}
    defaults |= {option.name: option.default for option in options}
    for name, default in defaults.items():
        value = getattr(settings, name) if name in names else settings.options.get(name)
        if value not in (None, default):
            raise SettingsError(f"{name} is {value!r}; expected {expected}")


class _Output(threading.Thread):
    """Prints to stderr what this process's workers add to their logs, until closed."""

    def __init__(self, logs: Path) -> None:
        super().__init__(name="output", daemon=True)
        self._logs = logs
        self._read = {path: path.stat().st_size for path in self._files()}
        self._begun: dict[Path, str] = {}  # lines without an end
        self._closed = threading.Event()
        self.start()

    def close(self) -> None:
        """Print the rest."""
        self._closed.set()
        self.join()
        self._look(last=True)

    def run(self) -> None:
        """Print now and then."""
        while not self._closed.wait(LOOK_EVERY_S):
            self._look()

    def _files(self) -> list[Path]:
        return sorted(self._logs.glob(f"worker-*-{os.getpid()}-*.log"))

    def _look(self, *, last: bool = False) -> None:
        lines = []
        for path in self._files():
            prefix = f"(worker {path.stem.rpartition('-')[2]}) "
            with contextlib.suppress(OSError):
                lines += [prefix + line for line in self._added(path, last=last)]
        more = len(lines) - LINES_AT_ONCE
        if more > 0:
            lines[LINES_AT_ONCE:] = [f"({counted(more, 'more line')} in {self._logs})"]
        if lines and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # a reader that has gone
                print("\n".join(lines), file=sys.stderr, flush=True)

    def _added(self, path: Path, *, last: bool) -> list[str]:
        """Return the new whole lines of a log; of very much output only the beginning."""
        text, end = read_log(path, after=self._read.get(path, 0))
        size = path.stat().st_size
        *lines, rest = (self._begun.pop(path, "") + text).split("\n")
        if end + LONGEST_LINE < size:
            lines += [rest, f"({size - end} more bytes in {path})"]
            self._read[path] = size
        else:
            self._read[path] = end
            if last or len(rest) > LONGEST_LINE:
                lines += filter(None, [rest])
            else:
                self._begun[path] = rest
        # Of a bar that overwrites itself, the last state.
        states = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
        return [line[:LONGEST_LINE] for line in states if not line.startswith(BEGINS)]


@contextlib.contextmanager
def running(farm: Farm) -> Iterator[Connection]:
    """Run the farm in a thread of its own for the length of the block; for synchronous programs.

    Its workers have loaded their models then. Raises the errors of `Farm.start` and `Farm.ready`.
    """
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="farm", daemon=True)
    thread.start()

    def wait(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        connection: Connection = wait(farm.start())
        wait(farm.ready())
        try:
            yield connection
        finally:
            wait(farm.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
