"""Runs the recipes of docs/samplers.md from the document's own text."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "samplers.md").read_text()


def blocks(language: str = "python", page: str = PAGE) -> dict[str, str]:
    """Return the code of each section by its heading; "" for that before the first section."""
    found = {}
    heading = ""
    for part in re.split(r"^## ", page, flags=re.MULTILINE):
        code = re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)
        if code:
            found[heading and part.partition("\n")[0]] = "".join(code)
        heading = "following"
    return found


def script(heading: str, changes: Mapping[str, str] | None = None) -> str:
    """Return the page's first block and the recipe, with `changes` such as fewer steps."""
    code = blocks()[heading] if heading else ""
    for old, new in (changes or {}).items():
        assert old in code, f"{heading} has no {old!r}"
        code = code.replace(old, new)
    return blocks()[""] + code


@contextmanager
def as_module(name: str, module: ModuleType) -> Iterator[None]:
    """Let `name` be importable within the block, as pickled classes of it need."""
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


def run(
    heading: str, folder: Path, changes: Mapping[str, str] | None = None, *, name: str = "recipe"
) -> ModuleType:
    """Run a recipe as a module, so that its classes can be pickled; return the module."""
    path = folder / f"{name}.py"
    text = script(heading, changes)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with as_module(name, module):
        # Not by the spec's loader, which takes the bytecode of a text of the same second and size.
        exec(compile(text, path, "exec"), module.__dict__)
    return module
