"""`farm.sweep(...)`: run sweeps from Python scripts and notebooks."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from farm.call import Array, ModelInfo
from farm.errors import FarmError
from farm.model import Model
from farm.sweep.design.arguments import DEFAULT_DESIGN, model_of, outputs_of, request_of
from farm.sweep.design.comparison import check_same_model, check_same_plan
from farm.sweep.design.cost import COLUMN, CostRule, parse_cost
from farm.sweep.design.plan import AUTO, ORDERS, Plan
from farm.sweep.design.prepare import make_plan
from farm.sweep.errors import SweepError
from farm.sweep.file.claim import Claim
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.progress import Progress
from farm.sweep.file.provenance import code_of, command_line, provenance
from farm.sweep.file.reading import failures_of, load_xarray
from farm.sweep.file.store import Store
from farm.sweep.file.tables import load_pandas, write_parquet
from farm.sweep.order.given import with_costs, with_model_costs, with_numbers
from farm.sweep.run.evaluator import CallEvaluator
from farm.sweep.run.in_flight import PointsInFlight
from farm.sweep.run.in_flight import probe as probe_first
from farm.sweep.run.model_costs import with_asked_costs
from farm.sweep.run.notebook import NotebookBar, SweepView, html_of
from farm.sweep.run.run import BULK, Rules, Run, Stop, check_limits
from farm.sweep.run.threads import Threads
from farm.wording import briefly
from farm.worker.loader import LoadError, load_models
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


@briefly(SweepError, FarmError, LoadError)
def sweep(
    model: Model | type[Model] | ServedModel | Callable[..., Any] | str,
    parameters: Mapping[str, Any] | Any,
    *,
    out: str | Path,
    design: str = DEFAULT_DESIGN,
    n: int | None = None,
    seed: int | None = None,
    fix: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    cost: str | Sequence[float] | Array | None = None,
    order: str = AUTO,
    correlation: Mapping[tuple[str, str], float] | None = None,
    where: str | Sequence[str] = (),
    when: Mapping[str, str] | None = None,
    gradient: Sequence[str] = (),
    seed_key: str = "",
    on: CallEvaluator | None = None,
    workers: int | None = None,
    in_flight: int | None = None,
    max_failures: int | None = None,
    max_hours: float | None = None,
    title: str = "",
    notes: str = "",
    probe: bool = True,
    resume: bool = True,
    overwrite: bool = False,
    show: bool = True,
    stream: bool = True,
) -> Sweep:
    """Evaluate a model at many points in a thread, and write the results to the HDF5 file `out`.

    model: a function, a Model or its class, which runs on `workers` threads of this process; a
    model of a farm, `client.model("beam")`; or "model.py:Beam" or the address of a running server;
    with `on`, a client of a farm, the name of a model there.
    parameters: name -> (lower, upper), a list of values, one number to hold it fixed, a frozen
    distribution of scipy.stats, texts as in ["euler", "rk4"], or farm.log(...) and similar
    functions; names are inputs, entries of inputs ("x[2]") or keys of the config. Or a DataFrame
    with a row for each point and a column for each parameter. fix: values of further inputs and
    config keys, such as arrays. design, n: "sobol" and 256, or both as "sobol:256"; also "grid:10",
    "lhs", "halton", "random", "file:points.csv", and for `farm.sensitivity` "saltelli", "morris"
    and "ff".
    correlation: {("a", "b"): 0.7}, of the normals under the two distributions. where: constraints,
    as "load < 3*thickness". when: {"order": 'solver == "rk4"'}, conditions of parameters; without a
    value in `fix`, a key of the config is left out where its condition is false.
    cost: expected run time of a point in any unit, to run the longest first: "n**3",
    "column:hours", "sweep:old.h5", or a number for each point; None: the model's method `cost` if
    it has one, otherwise learned from the first points. order: "auto", "shuffled" or "given".
    If `out` has this very sweep, it continues: the same call again loses and repeats nothing;
    without `seed` it goes on with that of the file. Another sweep is refused.
    resume: False refuses every file that exists. overwrite: begin again; the new sweep replaces the
    one in `out` when it begins. show: show a live bar on stderr. stream: keep outputs in memory for
    `as_completed`.
    Raises SweepError, FarmError.
    """
    path = Path(out)
    if path.is_dir():
        raise SweepError(
            f"out is the folder {path}; expected a file in it, such as {path / 's.h5'}"
        )
    rules = rules_of(seed, workers, in_flight, max_failures, max_hours)
    if order not in ORDERS:
        raise SweepError(f"order {order!r}: expected {', '.join(ORDERS)}")
    if isinstance(model, ServedModel):
        on, model = model.client, model.name
    rule = parse_cost(cost) if isinstance(cost, str) else None
    if not (resume or overwrite):
        Store.refuse_to_overwrite(path)
    request = replace(
        request_of(
            parameters, fix or {}, design, n, correlation=correlation, where=where, when=when
        ),
        config=config or {},
        gradients=gradient,
        seed_key=seed_key,
        title=title,
        provenance=provenance(command_line(), notes=notes),
        order=order,
        cost_column=rule.text if rule is not None and rule.kind == COLUMN else "",
    )
    with contextlib.ExitStack() as stack:
        claim = stack.enter_context(Claim(path))
        there = claim.continued(overwrite=overwrite)
        if seed is None:
            seed = secrets.randbits(31) if there is None else there.seed
        request = replace(request, seed=seed)
        if there is not None:
            check_same_plan(path, there, request)
        if isinstance(model, type) and issubclass(model, Model):
            model = model()
        elif not isinstance(model, str | Model):
            model = model_of(model, request)
            if not model.outputs:
                model.outputs = (
                    outputs_of(model, request)
                    if there is None
                    else {tensor.name: tensor for tensor in there.info.outputs}
                )
        if isinstance(model, Model):
            facts = {**request.provenance, MODEL_CODE: code_of(model)}
            request = replace(request, provenance=facts)
        owned, evaluator, info = evaluator_of(model, on, workers, config)
        if owned is not None:
            stack.callback(owned.close)
        if there is not None:
            info = evaluator.describe(info.name, there.config_of(0))
            codes = [facts.get(MODEL_CODE, "") for facts in (there.provenance, request.provenance)]
            check_same_model(path, there, info, (codes[0], codes[1]))
            if show:
                done = there.size - claim.pending
                print(
                    f"{path} has this sweep: {done} of {there.size} points are finished",
                    file=sys.stderr,
                )
            store = claim.resume()
            sent = PointsInFlight(evaluator, store.plan, BULK)
        else:
            plan = make_plan(request, lambda config: evaluator.describe(info.name, config))
            plan = _with_costs(plan, rule, cost, owned, evaluator)
            sent = (
                probe_first(plan, evaluator, BULK)
                if probe
                else PointsInFlight(evaluator, plan, BULK)
            )
            store = claim.create(plan)
        stack.callback(store.abandon)
        begun = Sweep(store, sent, rules, owned=owned, show=show, stream=stream)
        stack.pop_all()  # they belong to the sweep now
    begun.begin()
    return begun


def rules_of(
    seed: int | None,
    workers: int | None,
    in_flight: int | None,
    max_failures: int | None,
    max_hours: float | None,
) -> Rules:
    """Return the rules of a sweep. Raises SweepError if one of these numbers is out of range."""
    check_limits(
        seed=seed,
        workers=workers,
        in_flight=in_flight,
        max_failures=max_failures,
        max_hours=max_hours,
    )
    max_s = None if max_hours is None else 3600 * max_hours
    return Rules(max_failures=max_failures, max_s=max_s, in_flight=in_flight)


def evaluator_of(
    model: Model | str,
    on: CallEvaluator | None,
    workers: int | None,
    config: Mapping[str, Any] | None,
) -> tuple[Threads | None, CallEvaluator, ModelInfo]:
    """Return the threads to close at the end, if any, the evaluator, and the description."""
    if on is not None:
        if not isinstance(model, str):
            raise SweepError("with on=, model must be the name of a model of that farm")
        return None, on, on.describe(model, config)
    if isinstance(model, str):
        models = load_models([model])
        if len(models) != 1:
            raise SweepError(f"{model!r} has the models {', '.join(models)}; name one of them")
        at_once = CALLS_TO_A_SERVER if "://" in model else None
        if runs_one_at_a_time(model):
            at_once = 1
    else:
        models, at_once = {model.name or type(model).__name__: model}, None
    owned = Threads(models, workers=workers or at_once or os.cpu_count() or 1)
    try:
        return owned, owned, owned.describe(next(iter(models)), config)
    except BaseException:
        owned.close()
        raise


def _with_costs(
    plan: Plan,
    rule: CostRule | None,
    cost: str | Sequence[float] | Array | None,
    owned: Threads | None,
    evaluator: CallEvaluator,
) -> Plan:
    if plan.order != AUTO:
        return plan
    if rule is not None:
        return with_costs(plan, rule)
    if cost is not None:
        return with_numbers(plan, cost)
    if owned is None:
        return with_asked_costs(plan, evaluator, BULK)
    of_model = owned.cost_of(plan.info.name)
    return plan if of_model is None else with_model_costs(plan, of_model)


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
