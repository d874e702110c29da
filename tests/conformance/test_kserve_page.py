"""The examples of docs/kserve.md work as shown."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest

from farm.protocols.kserve.shared_memory.regions import OBJECTS
from tests.support.dispatcher_farm import LIMIT_S, Served, farm_of
from tests.support.shared_objects import shared_object
from tests.support.shown_blocks import text_of

PAGE = text_of("docs/kserve.md")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CURL = re.findall(r"^curl (?:.*\\\n)*.*$", PAGE, re.MULTILINE)
ADDRESS = "127.0.0.1:4242"


served = farm_of(next(block for block in PYTHON if block.startswith("# waves.py")))


@pytest.fixture(scope="module")
def address(served: Served) -> str:
    return served.connection.url.removeprefix("http://")


def test_the_lines_for_curl(address: str) -> None:
    answers = []
    for line in CURL:
        command = shlex.split(line.replace(ADDRESS, address).replace("\\\n", ""))
        done = subprocess.run(
            [command[0], "-sS", "--fail", *command[1:]],
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == {"ready": True}
    assert answers[1]["inputs"] == [{"name": "x", "datatype": "FP64", "shape": [-1, 3]}]
    assert [output["data"] for output in answers[2]["outputs"]] == [[2, 4, 6], [14]]
    assert (answers[3]["height"], answers[3]["energy"]) == ([2, 4, 6], 14)
    assert answers[4] == {"name": "Waves", "ready": True}
    assert answers[5]["predictions"][1] == {"height": [8, 10, 12], "energy": [77]}
    assert len(answers) == 6


def test_the_lines_for_tritonclient(address: str) -> None:
    shown, _ = [block for block in PYTHON if "tritonclient.http" in block]
    command = [sys.executable, "-c", shown.replace(ADDRESS, address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert re.findall(r"\d+", done.stdout) == ["2", "4", "6", "8", "10", "12", "14", "77"]


@pytest.mark.skipif(not OBJECTS.is_dir(), reason="this system has no /dev/shm")
def test_the_lines_for_shared_memory(address: str) -> None:
    (shown,) = [block for block in PYTHON if "shared_memory" in block]
    with shared_object(None) as free:
        block = shown.replace(ADDRESS, address).replace("/mine", free.key)
        command = [sys.executable, "-c", block]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "[2. 4. 6.]\n"
