"""Labels of workers that say which messages they take and send, beside those of every worker."""

from __future__ import annotations

TAKES_ORIGINS = "origins"
"""It takes calls with an origin."""

SPLITS_RUNS = "splits"
"""If a row takes long, it answers the rows before it at once and leaves those behind it to others:
see `farm.worker.row_run`."""
