"""The examples of docs/dask.md work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from dask.config import collect_yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "dask.md").read_text()
BEAM = re.search(r"`beam.py`.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
ADAPTIVE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.mark.slow
def test_an_adaptive_cluster_starts_workers_for_calls(tmp_path: Path) -> None:
    assert BEAM is not None
    (tmp_path / "beam.py").write_text(BEAM[1])
    (tmp_path / "page.py").write_text(ADAPTIVE)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_the_shown_configuration_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "dask.yaml").write_text(text)
    (config,) = collect_yaml([str(tmp_path)])
    assert config["distributed"]["comm"]["tls"]["client"].keys() == {"cert", "key"}
