"""Accounts of clients: their fair shares of workers and of worker-seconds.

A client is what `Farm-Client` names, or a host. Its callers are its chains (`Farm-Chain`), each
call that belongs to none, and all its bulk requests together: a client's share grows with the
callers that wait for an answer. An Account holds a client's use of one model; a Usage its use of
all models that share workers, which decides between models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from farm.errors import Overloaded

if TYPE_CHECKING:
    from farm.scheduler.queues import ClientTasks, ModelQueues

SLOT = 1 << 30
"""One worker's slot in the units of `Account.held`; integers add up without drift."""

MOST_CALLERS = 64
"""Most callers that count for a client's share: a host with 10,000 threads is not 10,000 hosts."""

FEW_QUEUED = 100
"""A client with fewer waiting calls than this may use the reserve."""

RESERVE = 10
"""The queue may exceed `most` by a tenth of it, for clients with few waiting calls: a single client
that fills the queue must not lock out all others.
"""

DEBT_RUNS = 1.0
"""A client that returns owes at most this many mean runs more than the one served last.

So a caller with one call at a time waits about a turn after a run that took long by chance, and not
until all others have used as much.
"""

BULK = ""
"""The chain of bulk requests: sweeps, maps, experiments. None: a call is a caller by itself."""

Chain = str | None


@dataclass(eq=False, slots=True, weakref_slot=True)
class ClientUsage:
    """A client; all its accounts share this, and it is removed with the last of them."""

    name: str
    queued: int = 0


Clients = WeakValueDictionary[str, ClientUsage]


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Usage:
    """A client's use of the workers of a SharedWorkers: over all of its models.

    used_s: worker-seconds per caller. free_at: when its last run is expected to end, or with
    several callers, to make room for the next one's. weight: the callers that count; fair_slots: a
    slot for each of them. rivals: its lines at levels where other clients wait, too.
    """

    name: str
    used_s: float = 0.0
    held: int = 0
    free_at: float = 0.0
    waiting: int = 0
    single: int = 0
    chains: dict[str, int] = field(default_factory=dict)
    weight: int = 1
    fair_slots: int = SLOT
    rivals: dict[ClientTasks, None] = field(default_factory=dict)

    def add_callers(self, chain: Chain, count: int) -> None:
        """Count callers, of whom a chain is one.

        If the share grows with them, the client's turns may come earlier.
        """
        if chain is None:
            self.single += count
        else:
            self.chains[chain] = 1
        weight = self.single + len(self.chains) if self.chains else self.single
        if weight > MOST_CALLERS:
            weight = MOST_CALLERS
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
        weight = self.single + (len(self.chains) if self.chains else 0) or 1
        self.weight = weight if weight < MOST_CALLERS else MOST_CALLERS
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


@dataclass(eq=False, repr=False, slots=True)
class Account:
    """A client's use of one model's workers: slots held now, and worker-seconds per caller."""

    client: ClientUsage
    usage: Usage
    used_s: float = 0.0
    held: int = 0
    active: int = 0

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

    def waits(self, tasks: int) -> None:
        """Count so many waiting tasks more, for the client and for its turns between models."""
        client, usage = self.client, self.usage
        client.queued += tasks
        usage.waiting += tasks

    def gave_back(self, held: int, seconds: float) -> None:
        """Reduce the held slots and correct the charge: the client's turn may come earlier."""
        usage = self.usage
        self.held -= held
        self.used_s += seconds
        usage.held -= held
        usage.used_s += seconds
        if usage.rivals:
            usage.reorder()


def share(account: Account) -> tuple[int, float]:
    """Return the workers that a client holds and the worker-seconds it has used, per caller."""
    return account.held // account.usage.fair_slots, account.used_s


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

    def charge(self, account: Account, held: int, seconds: float, now: float) -> None:
        """Charge a client for a task that is sent: its slots and, until it ends, a mean run."""
        used_s, usage = account.used_s, account.usage
        if used_s > self.virtual_s:
            self.virtual_s = used_s
        account.held += held
        account.used_s = used_s + seconds
        usage.held += held
        usage.used_s += seconds
        usage.free_at = now + seconds

    def join(self, group: SharedWorkers) -> None:
        """Let the model share workers with the others of a group."""
        old, self.group = self.group, group
        for account in self:
            account.usage = group.takes_over(account.usage, old.served_s)

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
        self._moved: dict[Usage, Usage] = {}
        self._usages: WeakValueDictionary[str, Usage] = WeakValueDictionary()

    def usage(self, name: str) -> Usage:
        """Return a client's usage; if it has no account yet a new one, level with `served_s`."""
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage(name, self.served_s)
        return usage

    def serve(self, usage: Usage) -> None:
        """Note whose turn it is."""
        self.served_s = usage.used_s

    def look(self) -> None:
        """Find the longest mean run of the classes that wait or run now."""
        queues = [queue for model in self.models for queue in model.by_operation.values()]
        busy = [queue.kinds.slowest_s() for queue in queues if queue.counts.in_flight or queue.size]
        self.longest_s = max(busy, default=0.0)

    def absorb(self, other: SharedWorkers) -> None:
        """Take over another group's models: a worker has joined that serves models of both."""
        for model in other.models:
            model.accounts.join(self)
        self.models += other.models
        moved, self._moved = self._moved, {}
        for usage in moved.values():  # with more callers, lines may come earlier
            usage.reorder()

    def takes_over(self, other: Usage, served_s: float) -> Usage:
        """Return the client's usage, to which that of another group, at `served_s`, is added."""
        usage = self._moved.get(other)
        if usage is None:
            usage = self._moved[other] = self.usage(other.name)
            usage.add(other, other.used_s - served_s)
        return usage


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


def check_room(
    queued: int, most: int, client: str, queued_of_client: int, most_of_client: int
) -> None:
    """Raise Overloaded if the queue has no room for a call of `client`.

    queued: number of waiting calls, of which `queued_of_client` are the client's.
    most, most_of_client: maximum number of waiting calls.
    """
    if queued >= most and (queued_of_client >= FEW_QUEUED or queued >= most + most // RESERVE):
        raise Overloaded(f"{queued} calls are waiting, the most the farm takes; try again later")
    if queued_of_client >= most_of_client:
        raise Overloaded(
            f"{queued_of_client} calls of client {client!r} are waiting, the most one client may "
            "have; try again later"
        )
