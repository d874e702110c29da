"""`pip install modelfarm` as pages show it, without a registry: the wheel is in a folder."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from tests.support.wheel import distributions_of_farm

LINE = "pip install modelfarm"


def offline(folder: Path) -> dict[str, str]:
    """Build farm's wheel in a new folder; return the settings by which pip takes it from there."""
    distributions_of_farm(folder)
    (folder / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_QUIET": "1",
        "PIP_FIND_LINKS": str(folder),
        "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
    }


def with_others(block: str, folder: Path) -> str:
    """Return the block, which then lets `env` find the packages of the environment of tests.

    folder: that of `offline`.
    """
    place = block.index("\n", block.index(LINE))
    return block[:place] + f"\ncp {folder}/others.pth env/lib/python*/site-packages" + block[place:]
