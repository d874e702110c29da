"""A concurrent.futures executor that runs remote models as functions."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from farm.client.names import GivenNames, named, set_names
from farm.client.remote import RemoteModel
from farm.errors import Cancelled
from farm.machine.daemon_pool import DaemonPool
from farm.machine.forks import renew_in_children

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 64
"""Default number of threads. They mostly wait for models, so it may far exceed the CPU count."""


class Executor(concurrent.futures.Executor):
    """A concurrent.futures executor that sends calls of remote models to their farm.

    Other functions run on one of `threads` threads; the calls that they make to remote models run
    on the farm concurrently. The executor can therefore be the `pool` of samplers that evaluate
    their own function, such as emcee:

        with farm.Executor() as pool:
            sampler = emcee.EnsembleSampler(walkers, dimensions, log_probability, pool=pool)

    client, chain: name the calls that functions make on these threads, in place of the names given
    to `connect`; `{i}` is the number of the thread, from 0. Calls that use no thread, which are
    those of `submit` and `map` with a model as the function, get the names without `{i}` only.

        with farm.Executor(4, chain="chain {i}") as pool:
            results = list(pool.map(run_chain, seeds))

    If an exception such as Ctrl-C ends the block, it does not wait for running calls. A forked
    process has the executor without the calls of its parent.
    """

    def __init__(
        self, threads: int = THREADS, *, client: str | None = None, chain: str | None = None
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; expected 1 or more")
        names = GivenNames(client, chain).checked()
        self._names = names.of_no_thread()
        named_by = None if names == GivenNames() else lambda n: set_names(names.of_thread(n))
        self._pool = DaemonPool(threads, "farm executor", named_by)
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._pending: set[Future[Any]] = set()
        self._shut_down = False
        renew_in_children(self)

    def renew(self) -> None:
        """Leave the pending calls to the parent; called in a forked process.

        Their futures fail there with Cancelled, so that no caller waits for them.
        """
        self._lock = threading.Lock()
        pending, self._pending = self._pending, set()
        if pending:
            # On a thread, which may wait for ever: one of the parent's threads may just have been
            # using a future, which is then locked.
            give_up = partial(_give_up, list(pending))
            threading.Thread(target=give_up, name="farm executor", daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return a future of `fn(*args, **kwargs)`. Raises RuntimeError after `shutdown`."""
        with self._lock:
            if self._shut_down:
                raise RuntimeError("the executor is shut down")
            future: Future[T]
            send = getattr(fn, "submit", None) if isinstance(fn, RemoteModel) else None
            if send is not None:
                with named(self._names):
                    future = send(*args, **kwargs)
            else:
                future = Future()
                self._pool.submit(partial(_run, future, partial(fn, *args, **kwargs)))
            self._pending.add(future)
        future.add_done_callback(self._done)
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Return the values of `fn` at the entries of the iterables, in their order.

        For a remote model and one iterable, this calls the model's own `map`.
        """
        if isinstance(fn, RemoteModel) and len(iterables) == 1 and timeout is None:
            with named(self._names):
                return iter(fn.map(iterables[0]))
        return super().map(fn, *iterables, timeout=timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; wait for the pending ones, or cancel them first if requested."""
        with self._lock:
            self._shut_down = True
            pending = list(self._pending)
        self._pool.shutdown()
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            concurrent.futures.wait(pending)

    def __exit__(self, *exc: object) -> None:
        failed = exc[0] is not None
        self.shutdown(wait=not failed, cancel_futures=failed)

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)


def _give_up(pending: Iterable[Future[Any]]) -> None:
    error = Cancelled("the call belongs to the process that this one was forked from")
    for future in pending:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it has its outcome
            future.set_exception(error)


def _run(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
