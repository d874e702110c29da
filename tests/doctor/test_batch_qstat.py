"""PBS and Grid Engine are told apart by what their qstat prints about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.doctor import batch
from tests.doctor.test_batch import GRID_ENGINE, PBS, program

PBS_PRO = """case "$1" in
    --version) echo 'pbs_version = 2022.1.1' >&2 ;;
    *) exit 2 ;;
esac"""
UNIVA = """case "$1" in
    -help) echo 'UGE 8.6.7'; exit 0 ;;
    *) echo "error: Unknown option" >&2; exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("body", "owner"),
    [
        (PBS, "pbs"),
        (PBS_PRO, "pbs"),
        (GRID_ENGINE, "grid-engine"),
        (UNIVA, "grid-engine"),
        ("echo 'Version: 4.2.10'", batch.UNKNOWN),
        ("exec /bin/sleep 60", batch.UNKNOWN),
    ],
)
def test_the_owner_of_qstat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, owner: str
) -> None:
    monkeypatch.setattr(batch, "QSTAT_S", 0.5 if "sleep" in body else 60.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert batch.qstat_owner() == ""
    program(tmp_path, "qstat", body)
    assert batch.qstat_owner() == owner
