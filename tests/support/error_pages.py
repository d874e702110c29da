"""The tables on the pages of errors, from the tables that farm's protocols and commands use.

`python -m tests.support.error_pages` writes them into the pages, between their markers.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from farm import errors
from farm.cli import exits
from farm.encoding.errors import ERRORS as UMBRIDGE
from farm.errors import FarmError
from farm.grpc.messages import ERRORS as GRPC
from farm.grpc.messages import STATUSES
from farm.protocols.graphpipe.codec import ERRORS as GRAPHPIPE
from farm.protocols.kserve.request import ERRORS as KSERVE
from farm.protocols.mip.packets import ERRORS as MIP
from farm.settings import SettingsError
from farm.sweep.errors import SweepError

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "errors"
OF_CALLS: tuple[type[FarmError], ...] = tuple(
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, FarmError) and kind is not FarmError
)
OTHERS: dict[type[Exception], str] = {
    SweepError: "farm.SweepError",
    SettingsError: "farm.settings.SettingsError",
}
"""Errors that no protocol answers, and their names in Python."""

MARKED = re.compile(r"(<!-- table -->\n\n).*?(\n\n<!-- end of table -->)", re.DOTALL)


def page_of(kind: type[Exception]) -> Path:
    """Return the page of a class of errors."""
    return FOLDER / f"{kind.__name__}.md"


def table(kind: type[Exception]) -> str:
    """Return what an error looks like everywhere, as a table."""
    status = exits.status_of(kind("text"))
    rows = [
        ("where", "what it looks like"),
        ("---", "---"),
        ("Python", f"`{OTHERS.get(kind, f'farm.errors.{kind.__name__}')}`"),
    ]
    if issubclass(kind, FarmError):
        name, umbridge = UMBRIDGE[kind]
        rows += [
            ("UM-Bridge, farm's own HTTP", f"status {umbridge}, type `{name}`"),
            ("KServe v2 over HTTP", f"status {KSERVE[kind]}"),
            ("KServe v2 over gRPC", f"status {STATUSES[GRPC[kind]]} `{GRPC[kind]}`"),
            ("GraphPipe", f"code {GRAPHPIPE[kind].value} `{GRAPHPIPE[kind].name}`"),
            ("MIP", f"code {MIP[kind].value} `{MIP[kind].name}`"),
        ]
    rows.append(("command line", f"exit status {status}: {exits.TABLE[status]}"))
    return "\n".join(f"| {where} | {look} |" for where, look in rows)


def with_table(kind: type[Exception], page: str) -> str:
    """Return the page of a class of errors with its table between the markers."""
    return MARKED.sub(lambda found: found[1] + table(kind) + found[2], page)


if __name__ == "__main__":
    for known in (*OF_CALLS, *OTHERS):
        page_of(known).write_text(with_table(known, page_of(known).read_text()))
