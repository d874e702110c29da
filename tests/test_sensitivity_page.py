"""The commands and the Python of docs/sensitivity.md run as shown, with fewer points."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from farm.cli import run

PAGE = (Path(__file__).parent.parent / "docs" / "sensitivity.md").read_text()
MODEL, FROM_PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()


@pytest.mark.slow
def test_the_page_runs_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ishigami.py").write_text(MODEL)
    told = []
    for line in COMMANDS:
        program, *words = shlex.split(line.replace("saltelli:256", "saltelli:32"))
        assert program == "farm"
        assert run(words) == 0
        told.append(capsys.readouterr().out)
    assert told[1].startswith("y: sobol, 256 points\n")
    (found,) = json.loads(told[2])
    assert len(found["pairs"]) == 3
    assert told[3].startswith("output,method,parameter,PAWN median,")
    exec(FROM_PYTHON, {})
    assert capsys.readouterr().out.startswith("<Sensitivity of y by sobol, ST: x[")
