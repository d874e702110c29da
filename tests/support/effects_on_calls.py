"""How callers see the settings of queues, records, failures and the end of a farm."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from farm.record.entry import Entry
from farm.record.file import entries_in
from farm.scheduler.reserve import LONG_RUNS
from farm.settings import Settings
from tests.support import effects_on_workers
from tests.support.setting_ways import There


class _Calls:
    """Calls that run until the block ends, or until another file exists."""

    def __init__(self, there: There, pool: ThreadPoolExecutor) -> None:
        self._there, self._pool = there, pool
        self.end = random.randbytes(8).hex()
        self._open: list[Future[tuple[int, dict[str, Any]]]] = []

    def add(self, model: str, **more: Any) -> str:
        """Send a call; return "" once the farm has it, or why it was refused."""
        call = self._pool.submit(self._there.evaluate, model, 1.0, **{"until": self.end, **more})
        self._there.wait(lambda: call.done() or self._at_hand() > len(self._open))
        if not call.done():
            self._open.append(call)
            return ""
        status, answer = call.result()
        assert status == 503, answer
        return str(answer)

    def finish(self) -> None:
        """Let all calls end; each is answered."""
        (self._there.folder / self.end).touch()
        assert [call.result()[0] for call in self._open] == [200] * len(self._open)

    def _at_hand(self) -> int:
        queues = self._there.client.status()["queues"]
        return sum(row["queued"] + row["in_flight"] for row in queues)


MANY = 30
"""More calls than two workers take besides a short queue."""


@contextlib.contextmanager
def _calls(there: There) -> Iterator[_Calls]:
    effects_on_workers.workers(there)
    with ThreadPoolExecutor(MANY + 1) as pool:
        calls = _Calls(there, pool)
        try:
            yield calls
        finally:
            calls.finish()


def max_queued(there: There) -> None:
    """Of many clients with one call each, one is refused."""
    with _calls(there) as calls:
        refused = next(filter(None, (calls.add("plate", client=f"{i}") for i in range(MANY))))
        assert f"{there.values['max_queued']} calls" in refused


def max_queued_per_client(there: There) -> None:
    """A client with many calls is refused, and another one is not."""
    with _calls(there) as calls:
        refused = next(filter(None, (calls.add("plate", client="a") for _ in range(MANY))))
        assert f"{there.values['max_queued_per_client']} calls" in refused
        assert not calls.add("plate", client="b")


def model_priority(there: There) -> None:
    """A later call of this model runs before an earlier one of the other."""
    with _calls(there) as calls:
        for end in ("one", "two"):
            calls.add("slab", until=end)
        try:
            for model in ("slab", "shell"):
                calls.add(model, note="order")
            (there.folder / "one").touch()
            there.wait((there.folder / "order").exists)
        finally:
            for end in ("one", "two"):
                (there.folder / end).touch()
    assert (there.folder / "order").read_text() == "shell\nslab\n"


def reserve(there: There) -> None:
    """Of two workers, one is free for short calls although two long ones are at hand."""
    assert there.evaluate("plate", 1.0, sleep=0.2)[0] == 200

    def are_known() -> bool:
        """Whether both workers are there, and short calls have been much shorter than long ones."""
        assert there.evaluate("quick", 1.0)[0] == 200
        state = there.client.status()
        rows = [row for row in state["queues"] if row["operation"] == "evaluate"]
        mean_s = {row["model"]: row["run_time_mean_s"] for row in rows}
        return len(state["workers"]) == 2 and LONG_RUNS * mean_s["quick"] < mean_s["plate"]

    there.wait(are_known)
    with _calls(there) as calls:
        for _ in range(2):
            calls.add("plate", client="long")
        assert "reserved for shorter calls of 'quick'" in " ".join(there.client.why("long")["why"])
        assert there.evaluate("quick", 1.0)[0] == 200


def grace_s(there: There) -> None:
    """A call that does not end holds up the end of the farm for this time, not for the default."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(there.evaluate, "plate", 1.0, note="begun", until="never")
        there.wait((there.folder / "begun").exists)
        asked = time.monotonic()
        there.stop()
        assert time.monotonic() - asked < Settings().grace_s
        assert call.result()[0] == 503


def retries(there: There) -> None:
    """A call whose worker dies is tried this many times again."""
    assert there.evaluate("beam", 1.0, note="tries", exit=3)[0] == 500
    tries = (there.folder / "tries").read_text().splitlines()
    assert len(tries) == 1 + there.values["retries"]


def time_limit_s(there: There) -> None:
    status, answer = there.evaluate("plate", 1.0, until="never")
    assert (status, "0.5 s" in str(answer)) == (500, True), answer


def record(there: There) -> None:
    assert there.evaluate("beam", 3.5)[0] == 200
    file = there.folder / "kept.record"

    def evaluated() -> list[float]:
        found = [stored.content for stored in entries_in(file, damage=print)]
        entries = [content for content in found if isinstance(content, Entry)]
        return [float(entry.inputs[0][0]) for entry in entries]

    there.wait(lambda: 3.5 in evaluated())


def reuse(there: There) -> None:
    """A repeat is answered without a run."""
    for _ in range(2):
        assert there.evaluate("beam", 4.5, note="runs") == (200, {"output": [[4.5]]})
    assert (there.folder / "runs").read_text() == "beam\n"
