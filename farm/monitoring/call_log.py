"""One line in the log for each call that has an id and ends, if the log shows such lines."""

from __future__ import annotations

import logging

from farm.call import Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task

log = logging.getLogger("farm.calls")


class CallLog:
    """Logs the ends of a dispatcher's calls at the level INFO, unless the log leaves these out."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        if log.isEnabledFor(logging.INFO):
            dispatcher.on_answered.append(self.answered)

    def answered(self, task: Task, outcome: Outcome, now: float) -> None:
        """Log the last answer to a task. now: monotonic time."""
        call = task.call
        origin = call.origin
        if origin is None:
            return
        fields = {
            "call": origin.call_id,
            "client": origin.client,
            "model": call.model,
            "operation": call.operation.value,
        }
        waited_s = now - task.submitted_at
        what = origin.call_id, call.operation.value, call.model, waited_s
        if isinstance(outcome, Result) and outcome.failed is None:
            fields["worker"] = outcome.worker
            log.info(
                "call %s: %s of model %r answered after %.6f s, of which %.6f s in the model",
                *what,
                outcome.run_time_s,
                extra=fields,
            )
            return
        error = outcome.failed if isinstance(outcome, Result) else outcome
        log.info(
            "call %s: %s of model %r failed after %.6f s: %s: %s",
            *what,
            type(error).__name__,
            error,
            extra=fields,
        )
