"""A sweep in a Jupyter notebook: a bar that a real kernel keeps up to date, also in other cells."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from farm.sweep.file.progress import Progress
from farm.sweep.run.notebook import NotebookBar, html_of, notebook_shell

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
    "with farm.serve(Square) as client:\n    value = client.model()(3.0)\n    display(client)",
    "Square()",
]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, str]]]:
    """The outputs of each cell, after all have run."""
    import nbclient  # both take half a second to import
    import nbformat

    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = nbclient.NotebookClient(notebook, timeout=50, resources=folder)
    client.execute()
    return [[dict(output.get("data", {})) for output in cell.outputs] for cell in notebook.cells]


@pytest.mark.slow
def test_the_bar_is_live_below_the_cell_that_began_the_sweep(shown: Any) -> None:
    ((bar,), *_) = shown
    assert "8/8 points" in bar["text/html"]
    assert "complete" in bar["text/html"]
    assert "8/8 points (100%)" in bar["text/plain"]


def test_it_is_live_wherever_the_sweep_is_shown(shown: Any) -> None:
    assert shown[1] == shown[0], "shown before the first point could finish"
    assert shown[2] == [{"text/plain": "'complete'"}]


def test_a_sweep_without_a_bar_is_a_table_of_its_counts(shown: Any) -> None:
    (output,) = shown[4]
    assert "8/8 points" in output["text/html"]
    assert output["text/plain"].startswith("<Sweep s.h5: 8/8 points")


def test_clients_and_models_are_shown(shown: Any) -> None:
    (client,) = shown[5]
    assert "<td>Square</td>" in client["text/html"]
    assert client["text/plain"].startswith("<Client of ")
    assert shown[6] == [{"text/plain": "<Square Square: x [1] -> y [1]>"}]


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
