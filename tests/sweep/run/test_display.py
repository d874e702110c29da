"""The bar of a sweep in a terminal and below a notebook's cell, and its lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import farm
from farm.sweep.file.progress import Progress
from farm.sweep.run import display
from farm.sweep.run.display import (
    Display,
    NotebookBar,
    cost,
    facts,
    hours,
    html_of,
    line,
    notebook_shell,
    rate,
)
from tests.support.coroutines import LIMIT_S


def at(done: int, **more: object) -> Progress:
    settings: dict[str, object] = {"rate_per_s": 2.0, "eta_s": 30.0, "pending": 100 - done, **more}
    return Progress("running", "beam", 100, done=done, **settings)  # type: ignore[arg-type]  # fields by name


def shown(terminal: bool) -> tuple[Display, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    return Display(console), text


def test_elsewhere_a_line_a_minute() -> None:
    bar, text = shown(terminal=False)
    with bar:
        for second in range(181):
            bar.show(at(second // 2, elapsed_s=float(second)))
    assert text.getvalue().splitlines() == [
        "beam: 30/100 points (30%), 2/s, 30 s left",
        "beam: 60/100 points (60%), 2/s, 30 s left",
        "beam: 90/100 points (90%), 2/s, 30 s left",
    ]


def test_a_terminal_shows_a_bar() -> None:
    bar, text = shown(terminal=True)
    with bar:
        bar.show(at(40, failed=3))
    assert "43/100" in text.getvalue()
    assert "3 failed, 2/s, 30 s left" in text.getvalue()


def test_messages_are_plain_text_told_once_and_when_they_are_over() -> None:
    bar, text = shown(terminal=False)
    for message in ("", "full disk", "full disk", ""):
        bar.show(at(1, message=message))
    assert text.getvalue().splitlines() == ["full disk", "the sweep continues"]
    bar, text = shown(terminal=False)
    bar.show(at(1, message="stopping: interrupted"))
    bar.show(replace(at(1), state="interrupted"))
    assert text.getvalue() == "stopping: interrupted\n"
    bar, text = shown(terminal=False)
    bar.say("x[0] = [red]1[/red]")
    assert text.getvalue() == "x[0] = [red]1[/red]\n"


def test_the_cost_is_told_once_and_not_when_all_is_done() -> None:
    bar, text = shown(terminal=False)
    bar.show(at(4))
    for done in (5, 6):
        bar.show(at(done, run_mean_s=36.0, expected_work_s=3600.0))
    assert text.getvalue().splitlines() == [
        "a point takes 36 s on average, so 100 points take about 1 core hours "
        "(times the cores of a worker); expected end in 30 s"
    ]
    bar, text = shown(terminal=False)
    bar.show(at(100, expected_work_s=3600.0, eta_s=0.0))
    bar.show(at(50, expected_work_s=3600.0, eta_s=None))
    assert text.getvalue() == ""


def test_facts_are_those_known() -> None:
    assert facts(Progress("complete", "t", 5, done=5)) == ""
    assert line(Progress("complete", "t", 5, done=5)) == "t: 5/5 points (100%), complete"
    assert line(Progress("complete", "t", 0)) == "t: 0/0 points (100%), complete"
    brief = Progress("running", "t", 5, run_mean_s=0.5, expected_work_s=2.5, eta_s=1.0)
    assert cost(brief).endswith("so 5 points take 2.5 s of a worker; expected end in 1 s")


@pytest.mark.parametrize(
    ("shown", "number", "text"),
    [
        *((rate, 12345.0, "12,345/s"), (rate, 2.5, "2.5/s"), (rate, 0.5, "30/min")),
        *((rate, 0.001, "3.6/h"), (hours, 1.0, "0.00028"), (hours, 7200, "2")),
        (hours, 3.6e6, "1,000"),
    ],
)
def test_rates_and_hours_are_readable(
    shown: Callable[[float], str], number: float, text: str
) -> None:
    assert shown(number) == text


CELLS = [
    """
import threading
import farm

gate = threading.Event()

def square(x):
    gate.wait(30)
    return {"y": x * x}

class Square(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}
    def evaluate(self, inputs, config):
        gate.wait(30)
        return inputs["x"] ** 2

sweep = farm.sweep(Square, {"x": (0, 1)}, n=8, seed=7, out="s.h5", workers=2, probe=False)
sweep
""",
    "sweep",
    "gate.set(); sweep.wait().state",
    "quiet = farm.sweep(Square, {'x': (0, 1)}, n=8, seed=7, out='s.h5', show=False); quiet.wait()",
    "quiet",
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, str]]]:
    """The outputs of each cell, after all have run."""
    import nbclient  # both take half a second to import
    import nbformat

    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    made = nbformat.v4.new_notebook(cells=cells)
    folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = nbclient.NotebookClient(made, timeout=int(3 * LIMIT_S), resources=folder)
    client.execute()
    return [[dict(output.get("data", {})) for output in cell.outputs] for cell in made.cells]


@pytest.mark.slow
def test_the_bar_is_live_below_the_cell_that_began_the_sweep(notebook: Any) -> None:
    ((bar,), *_) = notebook
    assert "8/8 points" in bar["text/html"]
    assert "complete" in bar["text/html"]
    assert "8/8 points (100%)" in bar["text/plain"]


@pytest.mark.slow
def test_it_is_live_wherever_the_sweep_is_shown(notebook: Any) -> None:
    assert notebook[1] == notebook[0], "shown before the first point could finish"
    assert notebook[2] == [{"text/plain": "'complete'"}]


@pytest.mark.slow
def test_a_sweep_without_a_bar_is_a_table_of_its_counts(notebook: Any) -> None:
    (output,) = notebook[4]
    assert "8/8 points" in output["text/html"]
    assert output["text/plain"].startswith("<Sweep s.h5: 8/8 points")


class Shell:
    """Keeps what is displayed, as IPython's shell passes it to a notebook."""

    def __init__(self) -> None:
        self.execution_count = 1
        self.display_pub = self
        self.published: list[tuple[str, bool, str]] = []

    def publish(self, data: dict[str, str], *, transient: dict[str, str], update: bool) -> None:
        self.published.append((data["text/html"], update, transient["display_id"]))


def progress(**more: Any) -> Progress:
    return Progress(**{"state": "running", "title": "a <b>", "total": 4, **more})


def test_a_cell_shows_the_bar_once() -> None:
    shell = Shell()
    bar = NotebookBar(shell, progress())
    bar.show_here()
    bar.show(progress(done=1))
    shell.execution_count = 2
    bar.show_here()
    assert [update for _, update, _ in shell.published] == [False, True, False]
    assert len({place for _, _, place in shell.published}) == 1
    assert "1/4 points" in shell.published[-1][0]


def test_a_sweep_is_shown_in_a_cell(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow tests above have a notebook around it."""
    shell = Shell()
    monkeypatch.setattr(display, "notebook_shell", lambda: shell)

    def swept(**more: Any) -> farm.Sweep:
        found = farm.sweep(lambda x: x, {"x": (0, 1)}, n=8, seed=7, out=path, **more)
        found.wait()
        return found

    sweep = swept()
    shown, update, _ = shell.published[-1]
    assert ("8/8 points" in shown, "complete" in shown, update) == (True, True, True)
    shell.execution_count = 2
    sweep._ipython_display_()
    assert shell.published[-1][1] is False
    count = len(shell.published)
    quiet = swept(show=False)
    with pytest.raises(NotImplementedError):
        quiet._ipython_display_()
    assert "8/8 points" in quiet._repr_html_()
    assert len(shell.published) == count


def test_texts_are_escaped_and_failures_counted() -> None:
    shown = html_of(progress(done=1, failed=2, message="the disk is <full>"))
    assert "a &lt;b&gt;" in shown
    assert "3/4 points, 2 failed" in shown
    assert "the disk is &lt;full&gt;" in shown
    assert 'value="3" max="4"' in shown


def test_outside_of_a_kernel_there_is_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert notebook_shell() is None
    import IPython

    assert notebook_shell() is None, "IPython is loaded, but this is no kernel"
    assert IPython.get_ipython() is None
