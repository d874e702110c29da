"""The Python of pages that have no test of their own works as shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import farm
from tests.support.coroutines import wait_until
from tests.support.front_door import front_door
from tests.support.shown_blocks import blocks, text_of

MODEL = """
import farm

class Model(farm.Model):
    inputs, outputs, version = {"x": 1}, {"y": 1}, "3"
    def evaluate(self, inputs, config):
        print("solving")
        return 2 * inputs["x"]
"""


def shown(page: str) -> list[str]:
    """Return the blocks of Python on a page, and those with a note that names this file."""
    found = blocks(text_of(f"docs/{page}"))
    return [b.text for b in found if b.language == "python" or b.note.endswith("test_pages.py")]


def execute(text: str, **names: Any) -> dict[str, Any]:
    """Run a block with these names, and return all names that it leaves."""
    exec(compile(text, "a page", "exec"), names)
    return names


@pytest.mark.slow
def test_the_page_of_seeing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    failures, log, progress, history, named = shown("seeing.md")
    with farm.serve(str(tmp_path / "model.py"), workers=1, dir=tmp_path / "run") as client:
        monkeypatch.setenv("FARM_CONNECTION", str(tmp_path / "run"))
        assert execute(named, farm=farm, client=client_of(client, "beam"), x=[2.0])["y"] == 4.0
        execute(failures)
        assert client.failures() == []
        (worker,) = client.status()["workers"]
        once = log.replace("node3/4412", worker["name"]).replace("while True", "for _ in range(1)")
        assert execute(once, client=client)["piece"]["text"] == ""
        assert "solving" in capsys.readouterr().out
        execute(progress, client=client)
        wait_until(lambda: "my survey" in [row["name"] for row in client.progress()])
        told = execute(history, client=client)["told"]
        assert len(told["times"]) == len(told["series"]["calls_per_s"])


class client_of:
    """A client whose only model has another name on the page."""

    def __init__(self, client: farm.Client, name: str) -> None:
        self.client, self.name = client, name

    def model(self, name: str) -> farm.RemoteModel:
        assert name == self.name
        return self.client.model()


@pytest.mark.slow
def test_the_page_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    served, model, connected = shown("record.md")
    assert execute(model, farm=farm)["Posterior"].version == "3"
    evaluate = "y = [client.model().evaluate([2.0]) for _ in range(2)]"
    assert execute(served.replace("...", evaluate).replace("workers=4", "workers=1"), farm=farm)[
        "y"
    ] == [4.0, 4.0]
    assert len(farm.load_pandas("model.record")) == 1
    twice = farm.model(inputs={"x": 1}, outputs={"y": 1})(lambda x: 2 * x)
    with front_door({"twice": twice}) as door:
        there = connected.replace("http://node7:4242", door.url).replace("...", evaluate)
        assert execute(there, farm=farm)["y"] == [4.0, 4.0]
    assert len(farm.load_pandas("mine.record")) == 1


class Forward(farm.Model):
    """The model of the page of UM-Bridge: one input of two entries, with all derivatives."""

    inputs, outputs = {"x": 2}, {"y": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        return inputs["x"].sum(keepdims=True) * config.get("level", 3)

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: farm.Inputs, sens: Any, config: farm.Config
    ) -> Any:
        return [3.0 * sens[0]] * 2


def test_the_pages_of_umbridge_and_slurm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import os

    import umbridge

    with front_door({"forward": Forward()}) as door:
        (client,) = shown("umbridge.md")
        execute(client.replace("http://127.0.0.1:4242", door.url))
        numbers = [float(x) for x in re.findall(r"[\d.]+", capsys.readouterr().out)]
        assert numbers == [2, 1, 9, 3, 3, 3]
        monkeypatch.setenv("FARM_URL", door.url)
        (model,) = shown("slurm.md")
        assert execute(model, os=os, umbridge=umbridge)["model"]([[1.0, 2.0]]) == [[9.0]]
