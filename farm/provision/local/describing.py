"""A short process that loads models and prints their descriptions.

With these a farm answers questions about models, and queues their calls, before its first worker
has started. The models are loaded in a process of their own because their code may crash, print or
use much memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from farm.call import ModelInfo
from farm.errors import FarmError, Unavailable
from farm.machine.lifeline import TiedProcess, end_with
from farm.machine.programs import in_words, python
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner

LIMIT_S = 120.0
"""Seconds after which the process is killed: loading some models takes long without their GPU."""


MOST_BYTES = 1 << 26
"""Longest descriptions, in bytes of JSON."""


async def describe(specs: Sequence[str], *, limit_s: float = LIMIT_S) -> tuple[ModelInfo, ...]:
    """Return the descriptions of the models that `specs` name, for the empty config.

    Raises Unavailable if the models cannot be loaded on this machine within `limit_s` seconds.
    Cancelling the wait ends the process.
    """
    process = TiedProcess(
        lambda lifeline: [*python(__name__), str(lifeline), *specs],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(limit_s):
            text = await _line(process)
    except TimeoutError:
        raise Unavailable(f"loading the models took more than {limit_s:g} s") from None
    finally:
        process.close()
    return _decoded(text, process)


async def _line(process: TiedProcess) -> bytes:
    """Return the line that the process prints when it has loaded the models; b"" if it ends."""
    output = process.process.stdout
    assert output is not None, "it is a pipe"
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MOST_BYTES)
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
    try:
        return await reader.readline()  # its end may not come: a model may have forked
    finally:
        pipe.close()


def _decoded(text: bytes, process: TiedProcess) -> tuple[ModelInfo, ...]:
    """Return the descriptions that the process printed. Raises Unavailable."""
    try:
        data: Any = json.loads(text)
        if "error" in data:
            raise Unavailable(str(data["error"]))
        return tuple(ModelInfo.from_json(row) for row in data["models"])
    except (KeyError, TypeError, ValueError):
        how = in_words(process.process.returncode, out_of_memory=False)
        raise Unavailable(f"the process that loads the models ended early: {how}") from None


def main(argv: Sequence[str]) -> int:
    """Load the models, and print their descriptions or the error as one JSON object."""
    lifeline, *specs = argv
    end_with(int(lifeline))
    answer = os.dup(1)
    os.dup2(2, 1)  # models may print
    told: dict[str, Any]
    try:
        told = {"models": [info.to_json() for info in Runner(load_models(specs)).models()]}
    except (LoadError, FarmError) as error:
        told = {"error": str(error)}
    with open(answer, "wb") as file:
        file.write(json.dumps(told).encode() + b"\n")
    return 0  # if threads of a model keep the process, its starter kills it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
