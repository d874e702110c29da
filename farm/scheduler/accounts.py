"""Accounts of clients: their fair shares of workers and of worker-seconds.

A client is what `Farm-Client` names, or a host. Its callers are its chains (`Farm-Chain`), each
call that belongs to none, and all its bulk requests together: a client's share grows with the
callers that wait for an answer. An Account holds a client's use of one model; a Usage its use of
all models that share workers, which decides between models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from farm.scheduler.queues import ClientTasks, ModelQueues

SLOT = 1 << 30
"""One worker's slot in the units of `Account.held`; integers add up without drift."""

MOST_CALLERS = 64
"""Most callers that count for a client's share: a host with 10,000 threads is not 10,000 hosts."""

DEBT_RUNS = 1.0
"""A client that returns owes at most this many mean runs more than the one served last.

So a caller with one call at a time waits about a turn after a run that took long by chance, and not
until all others have used as much.
"""

BULK = ""
"""The chain of bulk requests: sweeps, maps, experiments. None: a call is a caller by itself."""

Chain = str | None


class ClientUsage:
    """A client; all its accounts share this, and it is removed with the last of them."""

    __slots__ = ("__weakref__", "name", "queued")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queued = 0


Clients = WeakValueDictionary[str, ClientUsage]


class Usage:
    """A client's use of the workers of a SharedWorkers: over all of its models.

    used_s: worker-seconds per caller. free_at: when its last run is expected to end, or with
    several callers, to make room for the next one's. weight: the callers that count; fair_slots: a
    slot for each of them. rivals: its lines at levels where other clients wait, too.
    """

    __slots__ = (
        "__weakref__",
        "chains",
        "fair_slots",
        "free_at",
        "held",
        "name",
        "rivals",
        "single",
        "used_s",
        "waiting",
        "weight",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        self.used_s = 0.0
        self.free_at = 0.0
        self.waiting = 0
        self.single = 0
        self.chains: dict[str, int] = {}
        self.weight = 1
        self.fair_slots = SLOT
        self.rivals: dict[ClientTasks, None] = {}

    def add_callers(self, chain: Chain, count: int) -> None:
        """Count callers, of whom a chain is one.

        If the share grows with them, the client's turns may come earlier.
        """
        if chain is None:
            self.single += count
        else:
            self.chains[chain] = 1
        weight = min(MOST_CALLERS, self.single + len(self.chains))
        if weight > self.weight:
            moves = self.held >= self.fair_slots
            self.weight, self.fair_slots = weight, SLOT * weight
            if moves:
                self.reorder()

    def remove_callers(self, chain: Chain, count: int) -> None:
        """Count so many callers less."""
        if chain is None:
            self.single -= count
        else:
            del self.chains[chain]
        self.weight = min(MOST_CALLERS, self.single + len(self.chains)) or 1
        self.fair_slots = SLOT * self.weight

    def reorder(self) -> None:
        """Put the client's lines where they belong now, if that may be earlier."""
        for line in self.rivals:
            line.level.earlier(line)

    def add(self, other: Usage, lag_s: float) -> None:
        """Add what another usage of the client has, which is `lag_s` seconds ahead of its group."""
        self.held += other.held
        self.used_s += max(0.0, lag_s)
        self.free_at = max(self.free_at, other.free_at)
        self.waiting += other.waiting
        self.single += other.single
        for chain, count in other.chains.items():
            self.chains[chain] = self.chains.get(chain, 0) + count
        self.rivals |= other.rivals
        other.rivals = {}  # an account without open calls may still hold the other usage
        self.weight = min(MOST_CALLERS, self.single + len(self.chains)) or 1
        self.fair_slots = SLOT * self.weight


class Account:
    """A client's use of one model's workers: slots held now, and worker-seconds per caller."""

    __slots__ = ("active", "client", "held", "usage", "used_s")

    def __init__(self, client: ClientUsage, usage: Usage) -> None:
        self.client = client
        self.usage = usage
        self.used_s = 0.0
        self.held = 0
        self.active = 0

    def opened(self, chain: Chain, callers: int = 1) -> None:
        """Count an open task, and its callers if these have no other."""
        self.active += 1
        chains = self.usage.chains
        if chain in chains:
            chains[chain] += 1
        else:
            self.usage.add_callers(chain, callers)

    def closed(self, chain: Chain, callers: int = 1) -> None:
        """Count an open task less, and its callers if these have no other."""
        self.active -= 1
        chains = self.usage.chains
        if chain is not None and chains[chain] > 1:
            chains[chain] -= 1
        else:
            self.usage.remove_callers(chain, callers)

    def gave_back(self, held: int, seconds: float) -> None:
        """Reduce the held slots and correct the charge: the client's turn may come earlier."""
        usage = self.usage
        self.held -= held
        self.used_s += seconds
        usage.held -= held
        usage.used_s += seconds
        if usage.rivals:
            usage.reorder()


class Accounts:
    """The accounts of one model's clients. Those of inactive clients are removed over time.

    virtual_s: the worker-seconds of the client served last, the start of one that was away.
    """

    KEPT = 1024

    def __init__(self, clients: Clients, group: SharedWorkers) -> None:
        self.group = group
        self.virtual_s = 0.0
        self._clients = clients
        self._by_name: dict[str, Account] = {}
        self._most = self.KEPT

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_name.values())

    def entering(self, name: str, mean_s: float = 0.0) -> Account:
        """Return the account for a task that arrives now, of a class with this mean run time.

        A returning client starts level with the one served last, so that it neither owes for its
        use while alone nor has accumulated a claim while it was inactive.
        """
        account = self._by_name.get(name)
        if account is None:
            account = self._open(name)
        if not account.active:
            latest_s = self.virtual_s + DEBT_RUNS * mean_s
            if account.used_s < self.virtual_s:
                account.used_s = self.virtual_s
            elif mean_s and account.used_s > latest_s:
                account.used_s = latest_s
        usage = account.usage
        if not usage.waiting and usage.used_s < self.group.served_s:
            usage.used_s = self.group.served_s
        return account

    def _open(self, name: str) -> Account:
        if len(self._by_name) >= self._most:
            self._by_name = {n: a for n, a in self._by_name.items() if a.active}
            self._most = max(self.KEPT, 2 * len(self._by_name))
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = ClientUsage(name)
        account = self._by_name[name] = Account(client, self.group.usage(name))
        return account


class SharedWorkers:
    """The models that share workers, directly or through others, and the use of all of them.

    served_s: the worker-seconds per caller of the client served last, at which one that was away
    starts; longest_s: the longest mean run of the classes in use. See `turns.next_turn`.
    """

    def __init__(self) -> None:
        self.served_s = 0.0
        self.longest_s = 0.0
        self.models: list[ModelQueues] = []
        self._usages: WeakValueDictionary[str, Usage] = WeakValueDictionary()

    def usage(self, name: str) -> Usage:
        """Return a client's usage; if it has no account yet a new one, level with `served_s`."""
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage(name)
            usage.used_s = self.served_s
        return usage

    def absorb(self, other: SharedWorkers) -> None:
        """Take over another group's models: a worker has joined that serves models of both."""
        moved: dict[Usage, Usage] = {}
        for model in other.models:
            model.accounts.group = self
            for account in model.accounts:
                old = account.usage
                if old not in moved:
                    moved[old] = self.usage(old.name)
                    moved[old].add(old, old.used_s - other.served_s)
                account.usage = moved[old]
        self.models += other.models
        for usage in moved.values():  # with more callers, lines may come earlier
            usage.reorder()


def united(models: Iterable[ModelQueues]) -> None:
    """Let these models share workers from now on."""
    first: SharedWorkers | None = None
    for model in models:
        group = model.accounts.group
        if first is None:
            first = group
        elif group is not first:
            if len(group.models) > len(first.models):
                first, group = group, first
            first.absorb(group)
