"""A run of rows: one call of several rows, for a model that takes one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter

import numpy as np

from farm.call import RUN_BYTES, RUN_S, Array, Call, ModelInfo, Result
from farm.errors import FarmError
from farm.model import Model
from farm.worker import operations


class RowRun:
    """The rows of a call that are evaluated one after another, and answered together.

    on_row: called before each row but the first. ends_early: called after each row. failure:
    returns the outcome of a row whose model raised an exception.
    """

    def __init__(
        self,
        on_row: Callable[[int], object],
        ends_early: Callable[[], bool],
        failure: Callable[[BaseException, Call], FarmError],
    ) -> None:
        self._on_row = on_row
        self._ends_early = ends_early
        self._failure = failure
        # Guarded by the lock: `split` is called by another thread.
        self._lock = threading.Lock()
        self._room: list[Array] = []
        self._times: list[float] = []
        self._is_last = True  # no row begins after the one that runs

    def evaluate(self, model: Model, info: ModelInfo, call: Call) -> Result:
        """Evaluate row after row, as many as fit in one answer."""
        assert call.rows is not None, "it is a call of rows"
        inputs_of = operations.inputs_of_rows(call, info)
        times = self._times
        shapes: list[tuple[int, ...]] = []
        size = row_size = 0
        failed: FarmError | None = None
        began = perf_counter()
        self._is_last = False
        for row in range(call.rows):
            if row:
                if perf_counter() - began >= RUN_S or size >= RUN_BYTES or self._ends_early():
                    break
                self._on_row(row)
            try:
                outputs, run_time_s = operations.run(model, info, inputs_of(row), call)
            except BaseException as error:
                failed = self._failure(error, call)
                break
            if not row:
                shapes = [array.shape for array in outputs]
                row_size = sum([array.nbytes for array in outputs])
                most = min(call.rows, 1 + RUN_BYTES // max(1, row_size))
                self._room = [np.empty((most, *array.shape), array.dtype) for array in outputs]
            elif [array.shape for array in outputs] != shapes:
                break  # no array can hold both; this row begins the next run
            for column, array in zip(self._room, outputs, strict=True):
                column[row, ...] = array  # not as an object, if it holds bytes
            size += row_size
            with self._lock:
                times.append(run_time_s)
                if self._is_last:
                    break
        with self._lock:
            self._is_last = True
        return self._answer(len(times), failed)

    def split(self) -> Result | None:
        """Return the finished rows, as the first answer of several, and let no other row begin.

        The answer of `evaluate` has all rows, these and the one that runs. None: it has ended, or
        was split before.
        """
        with self._lock:
            if self._is_last:
                return None
            self._is_last = True
            count = len(self._times)
        return self._answer(count, more=True)

    def _answer(self, count: int, failed: FarmError | None = None, *, more: bool = False) -> Result:
        times = tuple(self._times[:count])
        outputs = tuple([column[:count] for column in self._room]) if count else ()
        return Result(outputs, sum(times), more=more, failed=failed, row_times_s=times)
