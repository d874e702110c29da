"""The fingerprint of a model's code: the same in every process, another after an edit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLASS = """
import farm

class Beam(farm.Model):
    inputs = {"k": 1}
    outputs = {"y": 1}

    @property
    def factor(self): return 2.0

    @staticmethod
    def square(x): return x * x

    def evaluate(self, inputs, config):
        names = {"one", "two", "three", "four"}
        return [(lambda q: q + 1)(x) for x in inputs["k"]] if "one" in names else 0
"""
FUNCTION = """
import farm

@farm.model(inputs={"k": 1}, outputs={"y": 1})
def Beam(k):
    return 2 * k
"""
PRINT = """
from farm.sweep.file.provenance import code_of
print(code_of(Beam() if isinstance(Beam, type) else Beam))
"""


def fingerprint(folder: Path, source: str) -> str:
    """Return the fingerprint that a new process gives; its sets have another order."""
    (folder / "model.py").write_text(source + PRINT)
    run = subprocess.run(
        [sys.executable, folder / "model.py"], capture_output=True, text=True, check=True
    )
    return run.stdout


@pytest.mark.parametrize("source", [CLASS, FUNCTION], ids=["class", "function"])
def test_it_is_the_same_in_every_process_and_after_a_comment(tmp_path: Path, source: str) -> None:
    first = fingerprint(tmp_path, source)
    assert first.startswith("code:")
    assert first == fingerprint(tmp_path, source) == fingerprint(tmp_path, f"# note\n\n{source}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (CLASS, "q + 1", "q + 2"),
        (CLASS, "return 2.0", "return 3.0"),
        (CLASS, "x * x", "x + x"),
        (CLASS, '"four"', '"five"'),
        (CLASS, 'inputs["k"]', 'inputs["l"]'),
        (FUNCTION, "2 * k", "3 * k"),
    ],
)
def test_an_edit_changes_it(tmp_path: Path, source: str, old: str, new: str) -> None:
    assert old in source
    assert fingerprint(tmp_path, source) != fingerprint(tmp_path, source.replace(old, new))


def test_a_base_class_of_the_user_counts(tmp_path: Path) -> None:
    derived = CLASS.replace("Beam", "Base") + "\nclass Beam(Base):\n    pass\n"
    changed = derived.replace("q + 1", "q - 1")
    assert fingerprint(tmp_path, derived) != fingerprint(tmp_path, changed)
