"""A sweep that runs in a thread of this process, and how it begins."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from farm.call import Array, ModelInfo
from farm.errors import FarmError
from farm.model import Model
from farm.sweep.design.comparison import check_same_model
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.claim import Claim
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.progress import Progress
from farm.sweep.file.provenance import code_of
from farm.sweep.file.reading import failures_of, load_xarray
from farm.sweep.file.store import Store
from farm.sweep.file.tables import load_pandas, write_parquet
from farm.sweep.run.display import NotebookBar, SweepView, html_of
from farm.sweep.run.evaluator import CallEvaluator, Threads
from farm.sweep.run.in_flight import PointsInFlight
from farm.sweep.run.run import Rules, Run, Stop
from farm.wording import briefly
from farm.worker.loader import load_models
from farm.worker.specs import runs_one_at_a_time

if TYPE_CHECKING:
    import pandas
    import xarray

CALLS_TO_A_SERVER = 64
"""Points in flight at once for a model on a running server, which has its own workers."""

MODEL_CODE = "model_code"
"""The fact of a sweep's provenance that tells an edited class or function from the old one."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A finished point: its index, parameters and outputs by name, or the error.

    parameters: numbers, words as text, None for an inactive parameter.
    gradients: (output, input) -> array (entries of output, entries of input), NaN where not
    requested.
    """

    index: int
    parameters: Mapping[str, Any]
    outputs: Mapping[str, Array]
    gradients: Mapping[tuple[str, str], Array]
    status: str
    error: str
    run_time_s: float

    @property
    def ok(self) -> bool:
        """Whether the point has outputs."""
        return not self.error


@runtime_checkable
class ServedModel(Protocol):
    """A model of a farm, as `client.model("beam")` returns it."""

    @property
    def name(self) -> str:
        """Its name there."""

    @property
    def client(self) -> CallEvaluator:
        """The client of the farm."""


class Sweep:
    """A sweep that runs in a thread of this process; its file is `path`.

    As a context manager it waits for the sweep at the end of the block. Ctrl-C while waiting stops
    the sweep; it can be resumed.
    """

    def __init__(
        self,
        store: Store,
        sent: PointsInFlight,
        rules: Rules,
        *,
        owned: Threads | None,
        show: bool,
        stream: bool,
    ) -> None:
        """Prepare the run. sent: submits the points; owned: closed at the end."""
        self.path = store.path
        self._plan = store.plan
        self._stop = Stop()
        self._owned = owned
        self._error: BaseException | None = None
        self._view = SweepView(stream=stream)
        self._run = Run(store, sent, rules=rules, stop=self._stop, host=self._view)
        self._view.begin(self._run.now(), bar=show)
        self._view.stored(list(store.finished()) if stream else [])
        self._thread = threading.Thread(target=self._go, name="sweep")

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def progress(self) -> Progress:
        """The current progress."""
        return self._view.progress

    @property
    @briefly(SweepError, FarmError)
    def failures(self) -> list[dict[str, Any]]:
        """The failures so far: point, attempt, status, error, traceback, worker, parameters."""
        return failures_of(self.path)

    @briefly(SweepError, FarmError)
    def as_completed(self) -> Iterator[Point]:
        """Yield each point once it finishes, until the sweep ends; first those of the file.

        Raises the error that ended the sweep early, if any.
        """
        try:
            while (rows := self._view.rows.get()) is not None:
                for row in rows:
                    yield _point(self._plan, row)
        except KeyboardInterrupt:
            self.stop()
            raise
        self._view.rows.put(None)  # so that a second iteration ends
        self.wait()

    @briefly(SweepError, FarmError)
    def wait(self) -> Progress:
        """Wait until the sweep ends, and return its final progress.

        Raises SweepError, OSError if the file cannot be written.
        """
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return self.progress

    def stop(self, *, running: bool = False) -> None:
        """Stop the sweep now, or once its running points have ended; it can be resumed."""
        (self._stop.ask if running else self._stop.ask_at_once)()
        self._thread.join()

    @briefly(SweepError, FarmError)
    def to_xarray(self) -> xarray.Dataset:
        """Return the current results, with parameters and outputs by name and in their shapes."""
        return load_xarray(self.path)

    @briefly(SweepError, FarmError)
    def to_pandas(self) -> pandas.DataFrame:
        """Return the current results as a table with a row for each point."""
        return load_pandas(self.path)

    @briefly(SweepError, FarmError, OSError)
    def to_parquet(self, path: str | Path) -> None:
        """Write the current results to a Parquet file, as a table with a row for each point."""
        write_parquet(self.path, path)

    def __enter__(self) -> Sweep:
        return self

    @briefly(SweepError, FarmError)
    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self.wait()
        else:
            self.stop()

    def __repr__(self) -> str:
        progress = self.progress
        return (
            f"<Sweep {self.path}: {progress.finished}/{progress.total} points, "
            f"{progress.unsuccessful} failed, {progress.state}>"
        )

    def _repr_html_(self) -> str:
        return html_of(self.progress)

    def _ipython_display_(self) -> None:
        """Show the live bar; without one IPython falls back to the other representations."""
        if not isinstance(self._view.display, NotebookBar):
            raise NotImplementedError
        self._view.display.show_here()

    def _go(self) -> None:
        try:
            with self._view.display or contextlib.nullcontext():
                self._run.go()
        except BaseException as error:  # re-raised in `wait`
            self._error = error
        finally:
            self._view.rows.put(None)
            if self._owned is not None:
                self._owned.close()


def _point(plan: Plan, row: Row) -> Point:
    outputs: dict[str, Array] = {}
    gradients: dict[tuple[str, str], Array] = {}
    start = 0
    for column in plan.columns if row.values is not None else ():
        assert row.values is not None
        array = row.values[start : start + column.size]
        start += column.size
        output = plan.info.outputs[column.output]
        if column.input is None:
            outputs[output.name] = array.reshape(output.shape)
        else:
            pair = output.name, plan.info.inputs[column.input].name
            gradients[pair] = array.reshape(column.shape)
    return Point(
        index=row.point,
        parameters=plan.values_of(row.point),
        outputs=outputs,
        gradients=gradients,
        status=PointStatus(row.status).name.lower(),
        error=row.error,
        run_time_s=row.t_run,
    )


class Beginning:
    """What is open before a sweep runs: the claim to its file, and its model.

    As a context manager it closes them, unless `run` has handed them to the sweep.
    evaluator, name, code: of the model, once `open_model` was called; code: the fingerprint of a
    class or function, "" for other models. threads: those that run it in this process, if any do.
    """

    evaluator: CallEvaluator
    name: str
    code: str
    threads: Threads | None

    def __init__(self, path: Path, rules: Rules, *, show: bool, stream: bool) -> None:
        """Claim the file. Raises SweepError."""
        self._rules = rules
        self._show = show
        self._stream = stream
        self._open = contextlib.ExitStack()
        self.claim = self._open.enter_context(Claim(path))

    def open_model(
        self,
        model: Any,
        of_function: Callable[[Callable[..., Any]], Model],
        on: CallEvaluator | None,
        workers: int | None,
        config: Mapping[str, Any] | None,
    ) -> None:
        """Load or start the model; `of_function` makes a function one. Raises SweepError."""
        if isinstance(model, ServedModel):
            on, model = model.client, model.name
        if isinstance(model, type) and issubclass(model, Model):
            model = model()
        elif not isinstance(model, str | Model):
            model = of_function(model)
        self.code = code_of(model) if isinstance(model, Model) else ""
        self.threads = None
        if on is not None:
            if not isinstance(model, str):
                raise SweepError("with on=, model must be the name of a model of that farm")
            self.evaluator, name = on, model
        else:
            self.evaluator = self.threads = threads_of(model, workers)
            self._open.callback(self.threads.close)
            name = self.threads.models()[0]
        self.name = self.evaluator.describe(name, config).name

    def describe(self, config: Mapping[str, Any]) -> ModelInfo:
        """Return the model's description for a config. Raises FarmError."""
        return self.evaluator.describe(self.name, config)

    def check_same_model(self, there: Plan) -> None:
        """Raise SweepError unless the model is that of the sweep in the file."""
        info = self.describe(there.config_of(0))
        sources = there.provenance.get(MODEL_CODE, ""), self.code
        check_same_model(self.claim.path, there, info, sources)

    def say(self, text: str) -> None:
        """Print a line, unless the user wants none."""
        if self._show:
            print(text, file=sys.stderr)

    def run(self, store: Store, sent: PointsInFlight | None = None) -> Sweep:
        """Return the sweep, which runs. sent: points in flight already."""
        self._open.callback(store.abandon)
        sent = sent or PointsInFlight(self.evaluator, store.plan)
        begun = Sweep(
            store, sent, self._rules, owned=self.threads, show=self._show, stream=self._stream
        )
        self._open.pop_all()
        begun.begin()
        return begun

    def __enter__(self) -> Beginning:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()


def threads_of(model: Model | str, workers: int | None) -> Threads:
    """Return the threads that evaluate a model. Raises SweepError, LoadError."""
    at_once: int | None = None
    if isinstance(model, str):
        models = load_models([model])
        if len(models) != 1:
            raise SweepError(f"{model!r} has the models {', '.join(models)}; name one of them")
        at_once = CALLS_TO_A_SERVER if "://" in model else None
        if runs_one_at_a_time(model):
            at_once = 1
    else:
        models = {model.name or type(model).__name__: model}
    return Threads(models, workers=workers or at_once or os.cpu_count() or 1)
