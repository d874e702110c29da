"""`farm experiment serve` as a process of its own, for tests of clients."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving import FARM, environment


@contextmanager
def serving_experiments(folder: Path, *options: str) -> Iterator[int]:
    """A server in a folder, on loopback; gives its port."""
    process = subprocess.Popen(
        [*FARM, "experiment", "serve", "--aepsych", "127.0.0.1:0", *options],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"AEPsych's clients at 127\.0\.0\.1:(\d+)", line)
        assert found is not None, f"the server said {line!r}"
        yield int(found[1])
    finally:
        process.kill()
        process.communicate()
