"""The processes of a Dask cluster: how many calls each may take, and what it has done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from farm.wire.usage import Used


class Processes:
    """The workers of a Dask cluster, by address.

    needs: amount of each of Dask's resources that a call holds while it runs, such as {"GPU": 1}.
    least_slots: offered even with fewer threads.
    unfit: those that cannot load the models. slots: calls that each of the others may run at once;
    a worker with none is not in it. done: answered calls of each.
    """

    def __init__(self, needs: Mapping[str, float] | None = None, least_slots: int = 0) -> None:
        self.needs = dict(needs or {})
        self._least_slots = least_slots
        self.unfit: set[str] = set()
        self.slots: dict[str, int] = {}
        self.done: Counter[str] = Counter()
        self._threads: dict[str, int] = {}
        self._running: Mapping[str, int] = {}
        self._known: Mapping[str, Mapping[str, Any]] = {}  # as Dask's scheduler describes them

    @property
    def offered(self) -> int:
        """Slots that all of them offer together."""
        if self.unfit and not self.slots:
            return 0
        return max(self._least_slots, sum(self.slots.values()))

    def strangers(self, threads: Mapping[str, int]) -> Collection[str]:
        """Return the workers that `learn` has not described yet."""
        return threads.keys() - self._known.keys()

    def learn(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Read the scheduler's description of its workers."""
        self._known = workers

    def used(self) -> Used:
        """Return what all workers use together."""
        each = [_used(known) for known in self._known.values()]
        memory = [used.memory_bytes for used in each if used.memory_bytes is not None]
        cores = [used.processor for used in each if used.processor is not None]
        return Used(sum(memory) if memory else None, sum(cores) if cores else None)

    def update(self, threads: Mapping[str, int], running: Mapping[str, int] = {}) -> None:
        """Note which workers there are, with the threads of each, and the calls that each runs."""
        self._threads, self._running = dict(threads), running
        self.unfit &= threads.keys()
        fit = {address: self._room(address) for address in threads if address not in self.unfit}
        self.slots = {address: room for address, room in fit.items() if room}
        for gone in self.done.keys() - threads.keys():
            del self.done[gone]

    def exclude(self, address: str) -> None:
        """Send no more calls to a worker that cannot load the models."""
        self.unfit.add(address)
        self.slots = {other: room for other, room in self.slots.items() if other != address}

    def lacking(self) -> str:
        """Return what the workers lack, if there are some and none has the resources; else ""."""
        if self.slots or not self.needs or not self._threads.keys() - self.unfit:
            return ""
        needs = ",".join(f"{name}={amount:g}" for name, amount in self.needs.items())
        return f"none of {len(self._threads)} Dask workers has {needs}: dask worker --resources ..."

    def _room(self, address: str) -> int:
        resources = self._known.get(address, {}).get("resources") or {}
        rooms = [int(resources.get(name, 0) // each) for name, each in self.needs.items()]
        return min([self._threads[address], *rooms])

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each worker as JSON data; any thread may call it.

        Answered calls are counted up to now; the workers and what each runs are as last seen.
        """
        return [
            {
                "address": address,
                "name": str(known.get("name", "")),
                "host": known.get("host", ""),
                "threads": threads,
                "slots": self.slots.get(address, 0),
                "state": self._state(address),
                "in_flight": self._running.get(address, 0),
                "done": self.done[address],
                **_used(known)._asdict(),
            }
            for address, threads in self._threads.items()
            for known in [self._known.get(address, {})]
        ]

    def _state(self, address: str) -> str:
        if address in self.unfit:
            return "cannot load the models"
        return "open" if address in self.slots else "lacks resources"


def _used(worker: Mapping[str, Any]) -> Used:
    """Return what a worker uses, as Dask's scheduler describes it: the processor in percent."""
    metrics = worker.get("metrics") or {}
    memory, percent = metrics.get("memory"), metrics.get("cpu")
    return Used(
        int(memory) if isinstance(memory, int | float) else None,
        percent / 100.0 if isinstance(percent, int | float) else None,
    )
