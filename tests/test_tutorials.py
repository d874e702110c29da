"""The tutorials do what they say, in their order and in one folder."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import h5py
import pytest

from tests.support.shown_blocks import FAILS, Block, blocks
from tests.support.terminal import Terminal

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
STEPS, FEWER = "(16, 2)), 120)", "(16, 2)), 70)"
"""Steps of the chain as shown, and as many as the check below needs."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def shown(page: str) -> list[Block]:
    return blocks((TUTORIALS / f"{page}.md").read_text())


class Reader(Terminal):
    """A terminal in which a reader follows tutorials."""

    mistakes = ""
    """What the blocks that fail have printed."""

    def follow(self, page: str) -> str:
        """Do all that a page shows; return what it prints last, and check what it says it does."""
        printed = ""
        for block in shown(page):
            block = dataclasses.replace(block, text=block.text.replace(STEPS, FEWER))
            if block.title == "prints":
                lines = block.text.splitlines()
                assert [x for x in printed.splitlines() if x in lines] == lines, printed
            elif block.title:
                (self.folder / block.title).write_text(block.text)
            elif block.note == FAILS:
                with pytest.raises(AssertionError) as failed:
                    self.type(block.text)
                self.mistakes += str(failed.value)
            elif not block.note:
                assert block.language == "sh", f"{page}.md, line {block.line}: {block.language}"
                printed = self.type(block.text) or printed
        return printed


def heat_flow(conductivity: float, film: float) -> float:
    """Return the heat flow at the base of a fin with an insulated tip, in closed form."""
    area, perimeter, length, warmer = 1e-4, 4e-2, 0.1, 80.0
    m = math.sqrt(film * perimeter / (conductivity * area))
    return conductivity * area * m * warmer * math.tanh(m * length)


def test_the_tutorials_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "fin"
    folder.mkdir()
    terminal = Reader(folder)
    try:
        terminal.follow("first-model")
        terminal.follow("simulator")
        terminal.follow("first-sweep")
        with h5py.File(folder / "fin.h5") as file:
            theta, flow = file["theta"][:], file["out_0"][:, 0]
            assert file["status"][:].tolist() == [1] * 256
        expected = [heat_flow(*point) for point in theta]
        assert max(abs(flow / expected - 1.0)) < 1e-4
        assert (folder / "fin.html").stat().st_size > 1000
        printed = terminal.follow("posterior")
    finally:
        terminal.close()
    assert "thickness" in terminal.mistakes
    assert "CONDUCTIVITY and FILM must be positive" in terminal.mistakes
    found = {
        name: (float(mean), float(sd))
        for name, mean, sd in re.findall(r"(\w+) (\S+) \+- (\S+)", printed)
    }
    for name, truth in (("conductivity", 180.0), ("film", 30.0)):
        mean, sd = found[name]
        assert abs(mean - truth) < 4 * sd < 0.5 * truth


def test_the_first_page(tmp_path: Path) -> None:
    terminal = Reader(tmp_path)
    try:
        terminal.follow("../index")
    finally:
        terminal.close()
    with h5py.File(tmp_path / "beam.h5") as file:
        assert file["status"][:].tolist() == [1] * 256
    assert (tmp_path / "beam.html").stat().st_size > 1000
