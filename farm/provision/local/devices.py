"""Assignment of this machine's GPUs to model processes."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Mapping

from farm.errors import InvalidInput
from farm.machine.resources import allowed_cpus
from farm.wording import worded

ALL = ("auto", "per-node")

ASK_TIMEOUT_S = 30.0
"""A driver that wakes its GPUs first takes some seconds."""

HIDDEN = ("-1", "NoDevFiles")
"""Values that hide all GPUs listed after them: CUDA's, and SLURM's in a job without GPUs."""

_UUID = re.compile(r"\(UUID: ((?:GPU|MIG)-[^)]+)\)")


def devices(wanted: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the values of CUDA_VISIBLE_DEVICES, one for each GPU that processes are started on.

    wanted: `auto` or `per-node`, all GPUs that this process may use; or positions among these, such
    as `0,2`. SLURM or the user selects usable GPUs by CUDA_VISIBLE_DEVICES; if unset, all of the
    machine are usable. Raises InvalidInput if there is none, or not that one.
    """
    option, given = worded("--gpus", "gpus"), worded(f"--gpus {wanted}", f"gpus={wanted!r}")
    bound = environment.get("CUDA_VISIBLE_DEVICES")
    mine = _present() if bound is None else _visible(bound)
    if not mine and (wanted in ALL or bound is not None):
        named = worded("--gpus 0,1", "gpus='0,1'")
        why = f"nvidia-smi is not here or lists none; name them, as {named}"
        if bound is not None:
            why = f"CUDA_VISIBLE_DEVICES is {bound!r}; ask SLURM for GPUs, as by --gres=gpu:1"
        raise InvalidInput(f"{given} finds no GPU: {why}")
    if wanted in ALL:
        return mine
    positions = [text.strip() for text in wanted.split(",")]
    if not all(text.isdecimal() for text in positions):
        raise InvalidInput(
            f"{option} is {wanted!r}; expected auto, per-node, or positions such as 0,1"
        )
    if len(set(map(int, positions))) < len(positions):
        raise InvalidInput(
            f"{given} names a GPU twice; {worded('-n 2', 'workers=2')} puts two on each"
        )
    if not mine:
        return tuple(positions)  # no program to ask; the driver will report wrong positions
    missing = [text for text in positions if int(text) >= len(mine)]
    if missing:
        raise InvalidInput(
            f"{given} names GPU {', '.join(missing)}; of {len(mine)} here ({', '.join(mine)}) the "
            "first is 0"
        )
    return tuple(mine[int(text)] for text in positions)


def _visible(bound: str) -> tuple[str, ...]:
    names = filter(None, map(str.strip, bound.split(",")))
    return tuple(itertools.takewhile(lambda name: name not in HIDDEN, names))


def _present() -> tuple[str, ...]:
    """Return this machine's GPUs by their permanent identifiers; empty without a driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus: list[str] = []
    for line in listed.splitlines():
        found = _UUID.search(line)
        if found is None:
            continue
        if found[1].startswith("MIG-") and gpus and gpus[-1].startswith("GPU-"):
            gpus.pop()  # a GPU that is split into instances is used through them
        gpus.append(found[1])
    return tuple(gpus)


def cpus_here(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of CPUs of SLURM's step on this node, or that the kernel allows."""
    told = environment.get("SLURM_CPUS_ON_NODE", "")
    return int(told) if told.isdecimal() and int(told) else allowed_cpus()
