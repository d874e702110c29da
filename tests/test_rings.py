"""The core of farm loads no outer ring before it needs it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.layers import RINGS, ring_of, violations

MOST_MODULES = 200
"""Modules of farm that a front door loads before it opens."""
LOADED = (
    "import sys, farm.server.farm; print(*(m for m in sys.modules if m.split('.')[0] == 'farm'))"
)


def test_the_rings_of_a_file() -> None:
    named = [
        "farm/scheduler/core.py",
        "farm/protocols/interface.py",
        "farm/protocols/mip/calls.py",
        "farm/client/http_line.py",
        "farm/client/native_line.py",
        "farm/client/recorded_line.py",
        "farm/cli/serve.py",
    ]
    rings = ["core", "core", "protocols", "protocols", "core", "studies", "commands"]
    assert [RINGS[ring_of(path)] for path in named] == rings


def test_an_outer_ring_is_loaded_late() -> None:
    def problems(source: str) -> list[str]:
        nothing: frozenset[str] = frozenset()
        return violations("farm/server/farm.py", source, base=nothing, extras=nothing)

    (at_top,) = problems("from farm.record.recorder import Recorder\n")
    assert at_top.endswith("of an outer ring, studies: in functions only")
    assert problems("def f():\n    from farm.record.recorder import Recorder\n") == []
    inner = problems("def f():\n    from farm.wire.arrays import x\n")
    assert [text.endswith("where only extras may be imported") for text in inner] == [True]


def test_a_front_door_loads_the_core_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    names = ended.stdout.decode().split()
    paths = [f"{name.replace('.', '/')}.py" for name in names]
    outer = [path for path in paths if ring_of(path) and path != "farm/protocols.py"]
    assert outer == []
    assert len(names) <= MOST_MODULES


def test_a_supervisor_of_workers_loads_no_event_loop() -> None:
    code = "import sys, farm.cli.worker; print('asyncio' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout == b"False\n"
