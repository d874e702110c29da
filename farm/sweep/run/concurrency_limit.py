"""Limits how many points of a sweep are in flight. Pure: the time is an argument.

The limit is high enough that no worker idles and low enough that the farm accepts every point. It
follows the number of workers seen in the answers, so it adapts to a growing farm.
"""

from __future__ import annotations

import math
from collections import Counter, deque

START = 256
"""Points in flight at least, until the farm refuses one."""
PER_WORKER = 4
SECONDS_AHEAD = 2.0
"""Time in seconds that the points in flight should last at the present rate of answers.

For tiny models this allows many points per message, LARGEST at most."""
LARGEST = 16_384
FIRST_LOOK_S, LONGEST_LOOK_S = 5.0, 60.0
"""Seconds until the farm is asked again how many workers it has; each time twice as long."""
REMEMBERED = 8192
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class ConcurrencyLimit:
    """The limit of points in flight, and the pause after the farm refused one.

    After a refusal the limit is halved, and each answer raises it by one (additive increase,
    multiplicative decrease, as in TCP). fixed: the user's own limit; None: adapt it.
    lost_since: time since which the farm cannot be reached; None while it answers.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.lost_since: float | None = None
        self._fixed = fixed
        self._slots = 0
        self._look_at, self._look_s = -math.inf, FIRST_LOOK_S
        self._ceiling = math.inf
        self._recent: deque[tuple[float, str, int]] = deque()
        self._remembered = 0
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
        ahead = min(LARGEST, int(SECONDS_AHEAD * self._rate(now)))
        wanted = self._fixed or max(START, PER_WORKER * max(self.workers, self._slots), ahead)
        return int(min(wanted, self._ceiling))

    def looks(self, now: float) -> bool:
        """Whether to ask the farm now how many calls it runs at once; less and less often."""
        if self._fixed is not None or self.lost_since is not None or now < self._look_at:
            return False
        self._look_at = now + self._look_s
        self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        return True

    def there_are(self, slots: int) -> None:
        """Note how many calls the farm runs at once; 0: it did not say."""
        self._slots = slots or self._slots

    def answered(self, worker: str, now: float, count: int = 1) -> None:
        """Record answers, which reset the length of pauses. worker: empty if unknown."""
        self.lost_since = None
        self._pause_s = 0.0
        # Additive increase after a refusal: by one for each answer.
        self._ceiling += count
        self._recent.append((now, worker, count))
        self._remembered += count
        if worker:
            self._workers[worker] += count
        while self._remembered - self._recent[0][2] >= REMEMBERED:
            _, old, several = self._recent.popleft()
            self._remembered -= several
            self._workers[old] -= several
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
        if self._remembered < 2:
            return 0.0
        return self._remembered / max(now - self._recent[0][0], 0.1)
