"""How many points of a sweep are in the farm at once. Pure: the time is an argument.

Enough that no worker waits for us, no more than the farm takes. The number of workers is learnt
from the answers, so that a farm that grows is fed.
"""

from __future__ import annotations

from collections import Counter, deque

START = 256
"""In flight before anything is known: a farm with more workers says so by its answers."""
LARGEST = 16_384
PER_WORKER = 4
SECONDS_AHEAD = 2.0
"""Points of tiny models travel many to a message, if there are enough of them."""
REMEMBERED = 8192
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class Window:
    """The bound on points in flight, and the pause after the farm refused one.

    fixed: the user's own number, None to find it out; start: in flight at first.
    """

    def __init__(self, fixed: int | None = None, *, start: int = START) -> None:
        self._fixed = fixed
        self._least = start
        self._ceiling = LARGEST
        self._recent: deque[tuple[float, str]] = deque()
        self._workers: Counter[str] = Counter()
        self._pause_s = 0.0
        self._held_until = 0.0

    @property
    def workers(self) -> int:
        """Workers that gave the last answers."""
        return len(self._workers)

    def size(self, now: float) -> int:
        """Points that may be in flight now; 0 in a pause."""
        if now < self._held_until:
            return 0
        if self._fixed is not None:
            return min(self._fixed, self._ceiling)
        wanted = max(self._least, PER_WORKER * self.workers, int(SECONDS_AHEAD * self._rate(now)))
        return min(wanted, self._ceiling)

    def answered(self, worker: str, now: float) -> None:
        """A point came back: whatever was in the way is gone. worker: empty when not known."""
        self._pause_s = 0.0
        # Grows again, by one for each answer, as far as the farm lets it.
        self._ceiling = min(self._ceiling + 1, LARGEST)
        self._recent.append((now, worker))
        if worker:
            self._workers[worker] += 1
        if len(self._recent) > REMEMBERED:
            _, old = self._recent.popleft()
            self._workers[old] -= 1
            if self._workers[old] <= 0:
                del self._workers[old]

    def refused(self, in_flight: int, now: float) -> None:
        """The farm is full: half of it for now, after a pause. In a pause it changes nothing."""
        if now >= self._held_until:
            self._ceiling = max(1, in_flight // 2)
            self.pause(now)

    def lost(self, now: float) -> None:
        """The farm cannot be reached: one point at a time tries it, until an answer comes."""
        if now >= self._held_until:
            self._ceiling = 1
            self.pause(now)

    def pause(self, now: float) -> None:
        """Give nothing for a while, longer each time until an answer comes."""
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._held_until = now + self._pause_s

    def _rate(self, now: float) -> float:
        """Answers a second, of late."""
        if len(self._recent) < 2:
            return 0.0
        return len(self._recent) / max(now - self._recent[0][0], 0.1)
