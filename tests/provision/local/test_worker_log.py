"""The log of a worker process; tests/cli/test_logs.py has it in both formats, from a real one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from farm.machine.json_log import LOG_FORMAT
from farm.provision.local.worker_log import first_line
from tests.support.dispatcher_farm import environment

PROGRAM = """
import logging, subprocess, sys
from farm.provision.local.worker_log import log_to_stderr
log_to_stderr()
logging.getLogger("farm.x").info("loaded")
print("one")
print("two", file=sys.stderr)
subprocess.run(["echo", "from another program"], check=True)
print("no end", end="")
"""


def output(**variables: str) -> tuple[list[str], list[str]]:
    """Return the lines on stdout and stderr of a process that logs, and prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_text_leaves_what_models_print_as_it_is() -> None:
    out, err = output()
    assert sorted(out) == ["from another program", "no end", "one"]
    assert [line.partition(" farm.x: ")[2] for line in err] == ["loaded", ""]
    assert err[1] == "two"


def test_json_has_an_object_for_each_line_of_python() -> None:
    out, err = output(**{LOG_FORMAT: "json"})
    out.remove("from another program")
    read = [json.loads(line) for line in (*out, *err)]
    assert [(line["logger"], line["message"]) for line in read] == [
        ("stdout", "one"),
        ("stdout", "no end"),
        ("farm.x", "loaded"),
        ("stderr", "two"),
    ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_first_line_of_a_log(log_format: str) -> None:
    line = first_line({LOG_FORMAT: log_format})
    assert line.endswith("\n")
    text = json.loads(line)["message"] if log_format == "json" else line
    assert "farm starts a worker process" in text
