"""Limits how many points of a sweep are in flight. Pure: the time is an argument.

The limit is high enough that no worker idles and low enough that the farm accepts every point. It
follows the number of workers seen in the answers, so it adapts to a growing farm.
"""

from __future__ import annotations

from collections import Counter, deque

START = 256
"""Points in flight at first; answers from more workers raise the limit."""
LARGEST = 16_384
PER_WORKER = 4
SECONDS_AHEAD = 2.0
"""Time in seconds that the points in flight should last at the present rate of answers.

For tiny models this allows many points per message."""
REMEMBERED = 8192
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class ConcurrencyLimit:
    """The limit of points in flight, and the pause after the farm refused one.

    After a refusal the limit is halved, and each answer raises it by one (additive increase,
    multiplicative decrease, as in TCP). fixed: the user's own limit; None: adapt it. start: the
    limit at first.
    lost_since: time since which the farm cannot be reached; None while it answers.
    """

    def __init__(self, fixed: int | None = None, *, start: int = START) -> None:
        self.lost_since: float | None = None
        self._fixed = fixed
        self._least = start
        self._ceiling = LARGEST
        self._recent: deque[tuple[float, str]] = deque()
        self._workers: Counter[str] = Counter()
        self._pause_s = 0.0
        self._held_until = 0.0

    @property
    def workers(self) -> int:
        """Number of workers behind the last answers."""
        return len(self._workers)

    def size(self, now: float) -> int:
        """Return how many points may be in flight now; 0 during a pause."""
        if now < self._held_until:
            return 0
        if self._fixed is not None:
            return min(self._fixed, self._ceiling)
        wanted = max(self._least, PER_WORKER * self.workers, int(SECONDS_AHEAD * self._rate(now)))
        return min(wanted, self._ceiling)

    def answered(self, worker: str, now: float) -> None:
        """Record an answer, which resets the length of pauses. worker: empty if unknown."""
        self.lost_since = None
        self._pause_s = 0.0
        # Additive increase after a refusal: by one for each answer.
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
        """Record a refusal: halve the limit, after a pause. During a pause it changes nothing."""
        if now >= self._held_until:
            self._ceiling = max(1, in_flight // 2)
            self.pause(now)

    def lost(self, now: float) -> None:
        """Record a lost connection: one point at a time, after a pause, until an answer comes."""
        if self.lost_since is None:
            self.lost_since = now
        if now >= self._held_until:
            self._ceiling = 1
            self.pause(now)

    def pause(self, now: float) -> None:
        """Start a pause, twice as long as the last one unless an answer came since."""
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._held_until = now + self._pause_s

    def _rate(self, now: float) -> float:
        """Return the recent rate of answers per second."""
        if len(self._recent) < 2:
            return 0.0
        return len(self._recent) / max(now - self._recent[0][0], 0.1)
