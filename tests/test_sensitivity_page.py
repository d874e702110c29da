"""The commands and the Python of docs/sensitivity.md run as shown, with fewer points."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.shell_page import ShellPage

PAGE = (Path(__file__).parent.parent / "docs" / "sensitivity.md").read_text()
MODEL, FROM_PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_page_runs_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ShellPage("docs/sensitivity.md", tmp_path, {"saltelli:256": "saltelli:32"}) as page:
        page.write("ishigami.py", MODEL)
        page.type_next("pip install")
        assert "y: sobol, 256 points\n" in page.type_next("farm sweep ishigami.py")
        told, _, table = page.type_next("farm sweep sensitivity").partition("\noutput,")
        (found,) = json.loads(told)
        assert len(found["pairs"]) == 3
        assert table.startswith("method,parameter,PAWN median,")
    monkeypatch.chdir(page.folder)
    exec(FROM_PYTHON, {})
    assert capsys.readouterr().out.startswith("<Sensitivity of y by sobol, ST: x[")
