"""A short process that loads models and returns their descriptions.

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
from farm.machine.job_process import JobProcess, ProcessDied, do_jobs
from farm.machine.lifeline import end_with
from farm.machine.programs import in_words
from farm.worker.loader import LoadError, load_models
from farm.worker.runner import Runner

LIMIT_S = 120.0
"""Seconds after which the process is killed: loading some models takes long without their GPU."""


async def describe(specs: Sequence[str], *, limit_s: float = LIMIT_S) -> tuple[ModelInfo, ...]:
    """Return the descriptions of the models that `specs` name, for the empty config.

    Raises Unavailable if the models cannot be loaded on this machine within `limit_s` seconds.
    Cancelling the wait ends the process.
    """
    quiet = subprocess.DEVNULL  # models may print
    process = JobProcess(__name__, specs, environment=os.environ, output=quiet)
    work = asyncio.get_running_loop().run_in_executor(None, _answer_of, process, limit_s)
    try:
        facts: Any = json.loads(await asyncio.shield(work))
    except TimeoutError:
        raise Unavailable(f"loading the models took more than {limit_s:g} s") from None
    except ProcessDied as end:
        how = in_words(end.code, out_of_memory=False)
        raise Unavailable(f"the process that loads the models ended early: {how}") from None
    finally:
        process.kill()
    if "error" in facts:
        raise Unavailable(str(facts["error"]))
    return tuple(ModelInfo.from_json(row) for row in facts["models"])


def _answer_of(process: JobProcess, limit_s: float) -> bytes:
    """Return the answer of the process, and close it; blocks."""
    try:
        (answer,) = process.ask([b"describe"], limit_s=limit_s)
        return bytes(answer)
    finally:
        process.close()


def main(words: Sequence[str]) -> int:
    """Load the models, and return their descriptions or the error as one JSON object."""
    _, lifeline, _, line, *specs = words
    end_with(int(lifeline))
    do_jobs(int(line), lambda files: [json.dumps(_described(specs)).encode()])
    return 0


def _described(specs: Sequence[str]) -> dict[str, Any]:
    try:
        return {"models": [info.to_json() for info in Runner(load_models(specs)).models()]}
    except (LoadError, FarmError) as error:
        return {"error": str(error)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
