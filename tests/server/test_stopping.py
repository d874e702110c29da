"""The action `stop` of a farm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.client import connect
from farm.errors import UnsupportedFeature
from farm.server.farm import Farm, running
from farm.settings import Settings
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM


@pytest.mark.slow
@pytest.mark.parametrize(("now", "grace_s"), [("true", 0.0), ("false", 7.0), ("", 7.0)])
def test_the_answer_says_what_has_to_end(tmp_path: Path, now: str, grace_s: float) -> None:
    (tmp_path / "beam.py").write_text(BEAM)
    settings = Settings(port=0, dir=tmp_path / "run", workers=2, grace_s=7.0)
    served = Farm([str(tmp_path / "beam.py")], settings)
    asked: list[bool] = []
    served.on_stop = asked.append
    with running(served), connect(tmp_path / "run") as client:
        wait_until(lambda: len(client.status()["workers"]) == 2)
        told = client.ask("stop", now=now)
        assert {k: told[k] for k in ("processes", "running", "queued", "workers", "jobs")} == {
            "processes": [os.getpid()],
            "running": 0,
            "queued": 0,
            "workers": 2,
            "jobs": 0,
        }
        assert told["grace_s"] == grace_s
        wait_until(lambda: bool(asked))
    assert asked == [now == "true"]


def test_a_farm_in_another_program_offers_no_stop(tmp_path: Path) -> None:
    class Half(farm.Model):
        inputs = {"x": 1}
        outputs = {"y": 1}

        def evaluate(self, inputs: Any, config: Any) -> Any:
            return {"y": inputs["x"] / 2}

    settings = Settings(port=0, dir=tmp_path / "run")
    with running(Farm([], settings, objects={"half": Half()}, doors=False)):
        client = connect(tmp_path / "run")
        with client, pytest.raises(UnsupportedFeature, match="no question 'stop'"):
            client.ask("stop")
