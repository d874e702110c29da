"""The interface between endpoints and the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.dispatcher.partition import Rows
from farm.dispatcher.questions import Questions
from farm.dispatcher.statistics import ModelStatistics
from farm.errors import FarmError
from farm.scheduler.state import TaskId

INTERNAL_ERROR = "the farm made a mistake; its log says which"


CancelCall = Callable[[], None]
"""Cancels a call; used when the client no longer waits for the answer."""


class FirstModels(Protocol):
    """Lets requests wait while the farm does not know all its models yet."""

    @property
    def incomplete(self) -> Callable[[], bool]:
        """Returns whether more models are expected beside the known ones."""

    def when_known(
        self, go: Callable[[], None], known: Callable[[], bool] | None = None
    ) -> CancelCall:
        """Call `go` once `known` holds, by default once there is any model.

        Or when no more models are expected, or the request has waited too long.
        """

    async def known(
        self, model: str | None = None, is_known: Callable[[], bool] | None = None
    ) -> None:
        """Return once a model, by default any, is known; or as in `when_known`.

        is_known: whether it is, if more names than its own count.
        """

    def no_model(self) -> FarmError:
        """Return the error of a request while no model is known."""

    def unknown(self, text: str) -> FarmError:
        """Return the error of a request for a model that is not known, which `text` says."""


class Backend(Protocol):
    """Runs calls for endpoints. The dispatcher implements it."""

    @property
    def first_worker(self) -> FirstModels:
        """The wait for the first models."""

    @property
    def questions(self) -> Questions:
        """What the farm answers about itself, and the actions of its owner."""

    def start_call(
        self, call: Call, hints: Hints, on_done: Callable[[Result | FarmError], None]
    ) -> TaskId:
        """Start a call; `on_done` receives its outcome later, once. Raises FarmError instead."""

    def start_rows(self, rows: Rows, model: str, operation: Operation, hints: Hints) -> TaskId:
        """Start many rows, each of which has its own outcome. Raises FarmError instead."""

    def more_rows(self, rows: TaskId) -> None:
        """Report that more rows of a `start_rows` request may be open now."""

    def cancel(self, task_id: TaskId) -> None:
        """Cancel a call, or many rows; their outcomes are not reported."""

    async def submit(self, call: Call, hints: Hints = ...) -> Result:
        """Run a call and return its result; cancelling the wait cancels it. Raises FarmError."""

    def description(self, model: str, config: str = ...) -> ModelInfo | None:
        """Return the model's description for a config, if it is known."""

    async def describe(self, model: str, config: str = ...) -> ModelInfo:
        """Return the model's description for a config. Raises FarmError."""

    def models(self) -> Mapping[str, ModelInfo]:
        """Return the served models with their descriptions for the empty config."""

    def is_ready(self, model: str) -> bool:
        """Whether a model has a worker, or one may join."""

    def statistics(self) -> Mapping[str, ModelStatistics]:
        """Return call counts and times of each model that was called."""

    def snapshot(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles as JSON data."""


@lru_cache(maxsize=4096)
def named(client: str) -> Hints:
    """Return hints with this client name and no others."""
    return Hints(client=client)
