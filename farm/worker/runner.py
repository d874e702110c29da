"""Runs calls on models: validates, merges calls into one evaluation, splits, and reports errors.

No sockets, and no clock except for the run time; a transport hosts a Runner and sends its outcomes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from time import perf_counter

import numpy as np

from farm import functions, sequences
from farm.call import EMPTY_CONFIG, RUN_BYTES, RUN_S, Array, Call, ModelInfo, Operation, Result
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    ModelNotFound,
    error_named,
)
from farm.model import Model, check_call, check_outputs, info_of
from farm.sequences import SequenceId, SequenceStep
from farm.worker import operations
from farm.worker.running import now_running

Outcome = Result | FarmError

log = logging.getLogger(__name__)

# Configs of a sweep must not fill the memory; 1,000 descriptions are about a megabyte.
DESCRIPTIONS_KEPT = 1000
# Files whose frames precede the model's own in a traceback.
OURS = frozenset({__file__, functions.__file__, operations.__file__})
# The text that a client shows its user; the error's detail has all of it.
MESSAGE_LENGTH = 2000


def timed(result: Result, queue_time_s: float, idle_s: float = -1.0) -> Result:
    """Return the result with its host's times: the call's waiting time there, and the idle time."""
    return Result(
        result.outputs,
        result.run_time_s,
        result.info,
        result.worker,
        queue_time_s,
        idle_s,
        result.batch_rows,
        result.more,
        result.failed,
        row_times_s=result.row_times_s,
    )


class Host:
    """The owner of the calls that a Runner runs, which names them by their positions.

    This one lets all calls run to their ends.
    """

    def claim(self, positions: Sequence[int]) -> Sequence[int]:
        """Return those of the next calls that are still to run: these begin now, together."""
        return positions

    def begins(self, position: int, row: int = 0) -> bool:
        """A call begins by itself after it failed together with others, or its row `row` begins.

        Return whether that row may begin; otherwise the run of rows ends before it.
        """
        return True

    def runs_rows(self, position: int, run: RowRun) -> None:
        """A call begins as a run of rows, which another thread may split."""

    def is_wanted(self, position: int) -> bool:
        """Whether a stream has to go on after its last answer."""
        return True


NULL_HOST = Host()


class RowRun:
    """The rows of a call, for a model that takes one at a time, and answers them together."""

    def __init__(self, host: Host, position: int) -> None:
        self._host = host
        self._position = position
        # Guarded by the lock: `split` is called by another thread.
        self._lock = threading.Lock()
        self._room: list[Array] = []
        self._times: list[float] = []
        self._count = 0  # rows that have run
        self._is_last = True  # no row begins after the one that runs

    def evaluate(self, model: Model, info: ModelInfo, call: Call) -> Result:
        """Evaluate row after row, as many as fit in one answer."""
        assert call.rows is not None, "it is a call of rows"
        times = self._times = [0.0] * call.rows
        varies = bool([tensor for tensor in info.outputs if tensor.varies])
        failed: FarmError | None = None
        began = now = perf_counter()
        most, self._is_last = call.rows, False
        try:
            for row, inputs in enumerate(operations.inputs_of_rows(call, info)):
                if row and (
                    row >= most
                    or now - began >= RUN_S
                    or not self._host.begins(self._position, row)
                ):
                    break
                config = {} if call.config == EMPTY_CONFIG else operations.config_of(call)
                start = perf_counter()
                value = model.evaluate(inputs, config)
                now = perf_counter()
                outputs = check_outputs(value, info)
                if not row:
                    row_size = max(1, sum([array.nbytes for array in outputs]))
                    most = min(most, -(-RUN_BYTES // row_size))
                    self._room = [np.empty((most, *array.shape), array.dtype) for array in outputs]
                elif varies and [a.shape for a in outputs] != [c.shape[1:] for c in self._room]:
                    break  # no array can hold both; this row begins the next run
                for column, array in zip(self._room, outputs, strict=True):
                    column[row, ...] = array  # not as an object, if it holds bytes
                with self._lock:
                    times[row], self._count = now - start, row + 1
                    if self._is_last:
                        break
        except BaseException as error:
            failed = _logged(named(error), call)
        with self._lock:
            self._is_last = True
        return self._answer(self._count, failed)

    def split(self) -> Result | None:
        """Return the finished rows, as the first answer of several, and let no other row begin.

        The answer of `evaluate` has all rows, these and the one that runs. None: it has ended, or
        was split before.
        """
        with self._lock:
            if self._is_last:
                return None
            self._is_last = True
            count = self._count
        return self._answer(count, more=True)

    def _answer(self, count: int, failed: FarmError | None = None, *, more: bool = False) -> Result:
        times = tuple(self._times[:count])
        outputs = tuple([column[:count] for column in self._room]) if count else ()
        return Result(outputs, sum(times), more=more, failed=failed, row_times_s=times)


class Runner:
    """Answers calls with the given models, one model call at a time.

    A model's arguments are private to it: writable copies of the inputs and a new config. Its
    results are copied too, so that it may reuse its buffers. Exceptions of models become outcomes.
    Several threads may share a Runner if its models allow that.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = dict(models)
        self._descriptions: dict[tuple[str, str], tuple[Model, ModelInfo]] = {}
        self._kept: dict[tuple[str, SequenceId], sequences.Sequence] = {}

    def models(self) -> tuple[ModelInfo, ...]:
        """The models' descriptions for the empty config. Raises FarmError."""
        infos = []
        for name in self._models:
            outcome = self._answer(Call(name, Operation.DESCRIBE))
            if isinstance(outcome, FarmError):
                raise error_named(
                    type(outcome).__name__,
                    f"model {name!r} cannot describe itself for the empty config: {outcome}",
                    outcome.detail,
                )
            assert outcome.info is not None
            infos.append(outcome.info)
        return tuple(infos)

    # The states of sequences

    def keeps_sequences(self) -> bool:
        """Whether it has the state of any sequence."""
        return bool(self._kept)

    def end_sequence(self, model: str, sequence: SequenceId) -> None:
        """Drop the state of a sequence that has ended; it may be unknown."""
        self._kept.pop((model, sequence), None)

    def end_sequences(self) -> None:
        """Drop all states."""
        self._kept.clear()

    def _state_for(self, step: SequenceStep, call: Call) -> sequences.Sequence:
        """Return the state for a call of a sequence. Raises InvalidInput if it has none."""
        key = call.model, step.id
        if step.start:
            self._kept[key] = sequences.Sequence(step.id)
        state = self._kept.get(key)
        if state is None:
            raise InvalidInput(sequences.needs_start(step.id, call.model))
        state.start, state.end = step.start, step.end
        if step.end:
            del self._kept[key]
        return state

    def execute(self, calls: Sequence[Call], host: Host = NULL_HOST) -> list[Outcome]:
        """Return the outcome of each call, in their order; see `run`."""
        outcomes: dict[int, Outcome] = {}
        for finished in self.run(calls, host):
            outcomes.update(finished)
        return [outcomes[i] for i in range(len(calls))]

    def run(
        self, calls: Sequence[Call], host: Host = NULL_HOST
    ) -> Iterable[list[tuple[int, Outcome]]]:
        """Yield (position in `calls`, outcome) for the calls of each model call as it ends.

        Evaluate calls with equal model and config share one model call of up to `max_batch` rows.
        If that raises, its members run again one by one, so that only those at fault fail; but for
        a model with `repeatable = False` they all fail. A consumer that stops early leaves the
        remaining calls unrun. A stream yields each of its answers, marked `more`, and then its end.
        A call of several rows of a model without batches is evaluated row by row. It is answered
        with the rows finished so far when one fails, after `RUN_S`, when its outputs reach
        `RUN_BYTES`, or when the host says that it must end.
        """
        if len(calls) == 1:
            (call,) = calls
            if call.operation is Operation.EVALUATE and call.rows is None and call.origin is None:
                return [[(0, self._answer(call))]] if host.claim((0,)) else ()
        return self._run(calls, host)

    def _run(self, calls: Sequence[Call], host: Host) -> Iterator[list[tuple[int, Outcome]]]:
        has_names = bool([call for call in calls if call.origin is not None])
        try:
            for planned in self._groups(calls):
                group = host.claim(planned)
                begins_again = False
                if len(group) > 1:
                    if has_names:
                        now_running([calls[i] for i in group])
                    merged = self._answer_merged([calls[i] for i in group])
                    if merged is not None:
                        yield list(zip(group, merged, strict=True))
                        continue
                    begins_again = True
                for i in group:
                    if has_names:
                        now_running([calls[i]])
                    if begins_again:
                        host.begins(i)
                    if calls[i].operation is not Operation.STREAM:
                        run = None
                        if (calls[i].rows or 1) > 1:
                            run = RowRun(host, i)
                            host.runs_rows(i, run)
                        yield [(i, self._answer(calls[i], run))]
                        continue
                    with contextlib.closing(self._answers(calls[i])) as answers:
                        for outcome in answers:
                            yield [(i, outcome)]
                            if not host.is_wanted(i):
                                yield [(i, Result(()))]
                                break
        finally:
            if has_names:
                now_running(())

    def _groups(self, calls: Sequence[Call]) -> list[list[int]]:
        groups: list[list[int]] = []
        filling: dict[object, tuple[list[int], int]] = {}
        for i, call in enumerate(calls):
            model = self._models.get(call.model)
            if model is None or model.max_batch == 1 or call.operation is not Operation.EVALUATE:
                groups.append([i])
                continue
            skip = 0 if call.rows is None else 1
            key = call.model, call.config, *[a.shape[skip:] for a in call.inputs]
            rows = call.rows or 1
            group, filled = filling.get(key, ([], 0))
            if not group or filled + rows > model.max_batch:
                group, filled = [], 0
                groups.append(group)
            group.append(i)
            filling[key] = group, filled + rows
        return groups

    def _answer(self, call: Call, run: RowRun | None = None) -> Outcome:
        """Return the outcome of one call that runs alone."""
        try:
            kept: tuple[sequences.Sequence, ...] = ()
            if call.step and getattr(self._models.get(call.model), "stateful", False):
                kept = (self._state_for(call.step, call),)
            known = self._descriptions.get((call.model, call.config))
            model, info = known or self._described(call)
            if call.operation is Operation.DESCRIBE:
                return Result((), info=info)
            check_call(call, info)
            if call.operation is Operation.COST:
                return operations.costs(model, info, call)
            if call.operation is Operation.VALUE_AND_GRADIENT:
                return operations.value_and_gradient(model, info, call)
            if call.operation is not Operation.EVALUATE:
                return operations.derivative(model, info, call)
            if info.max_batch > 1:
                return operations.evaluate_rows(model, info, [call])[0]
            if run is not None and info.repeatable:
                return run.evaluate(model, info, call)
            return operations.evaluate(model, info, call, *kept)
        except BaseException as error:  # a model may raise SystemExit: only its call fails
            return _logged(named(error), call)

    def _answers(self, call: Call) -> Generator[Outcome]:
        """Yield the outcomes of a stream: its answers, and its end or its error."""
        try:
            model, info = self._described(call)
            check_call(call, info)
            yield from operations.answers_of(model, info, call)
        except GeneratorExit:
            raise  # the consumer has stopped
        except BaseException as error:
            yield _logged(named(error), call)

    def _answer_merged(self, calls: Sequence[Call]) -> list[Outcome] | None:
        """Return the outcomes of calls that share one evaluation; None: run them one by one."""
        try:
            model, info = self._described(calls[0])
        except BaseException:
            return None
        mistakes = [_mistake(call, info) for call in calls]
        fitting = [call for call, error in zip(calls, mistakes, strict=True) if error is None]
        answers: Iterator[Outcome]
        try:
            answers = iter(operations.evaluate_rows(model, info, fitting) if fitting else ())
        except BaseException as error:
            if info.repeatable:
                return None
            answers = iter([_logged(named(error), calls[0])] * len(fitting))
        return [error or next(answers) for error in mistakes]

    def _described(self, call: Call) -> tuple[Model, ModelInfo]:
        key = call.model, call.config
        if (known := self._descriptions.get(key)) is None:
            if (model := self._models.get(call.model)) is None:
                raise ModelNotFound(
                    f"no model {call.model!r} here; the models are {sorted(self._models)}"
                )
            known = model, info_of(model, operations.config_of(call), name=call.model)
            while len(self._descriptions) >= DESCRIPTIONS_KEPT:
                self._descriptions.pop(next(iter(self._descriptions)), None)
            self._descriptions[key] = known
        return known


def named(error: BaseException) -> FarmError:
    """Return the outcome of a call whose model raised `error`; a FarmError is returned as it is."""
    if isinstance(error, FarmError):
        # The frames of a traceback keep the model's arrays alive.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return error
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its text cannot be shown)"
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(message) > MESSAGE_LENGTH:
        message = message[:MESSAGE_LENGTH] + " ..."
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in OURS:
            frames = frames.tb_next  # the user's own frames begin below ours
        detail = "".join(traceback.format_exception(type(error), error, frames))
    except MemoryError:
        detail = ""
    return ModelFailed(message, detail=detail)


def _logged(error: FarmError, call: Call) -> FarmError:
    if isinstance(error, ModelFailed | InvalidOutput):
        log.info("%s of model %r failed: %s", call.operation, call.model, error.detail or error)
    return error


def _mistake(call: Call, info: ModelInfo) -> FarmError | None:
    try:
        check_call(call, info)
    except FarmError as error:
        return named(error)
    return None
