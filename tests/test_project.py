"""The project's own rules: imports, sizes, names, mirrored tests, one version, links, extras."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import farm
from tests.imports import LEVELS, violations

ROOT = Path(__file__).parent.parent
FARM = sorted((ROOT / "farm").rglob("*.py"))
FOLDERS = ("docs", "examples", "slurm")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(x for d in FOLDERS for x in ROOT.glob(f"{d}/**/*.md"))])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

LONGEST_FILE = 500
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|managers?|common)($|_)")

WITHOUT_TEST_FILE = {
    "farm/__main__.py": "one call of the command line, which tests/cli runs",
    "farm/experiment/config.py": "values without code",
    "farm/experiment/models/libraries.py": "imports, whose warnings test_proposals.py would see",
    "farm/experiment/progress.py": "a value without code",
    "farm/experiment/work.py": "values without code",
    "farm/version.py": "one constant; this file compares it with the changelog",
}
"""Modules without a test file of their own, and why."""

NOT_MIRRORED = {"contracts", "conformance", "slurm", "system"}
"""Test folders that go across the package: one suite over several modules, or over processes."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def distributions(requirements: list[str]) -> frozenset[str]:
    names = (re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0] for text in requirements)
    return frozenset(name.lower() for name in names)


BASE = distributions(PROJECT["dependencies"])
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"examples", "test", "dev"}
OPTIONAL = distributions(
    [text for extra, texts in EXTRAS.items() if extra not in FOR_DEVELOPERS for text in texts]
) | {"dask"}


PARTS = [path for path in FARM if path != ROOT / "farm" / "__init__.py"]
"""All but the public names, which stand above every part."""


@pytest.mark.parametrize("path", PARTS, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    assert violations(name_of(path), path.read_text(), base=BASE, extras=OPTIONAL) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("farm/protocols/x.py", "import asyncio", "pure part"),
        ("farm/scheduler/x.py", "from time import monotonic", "pure part"),
        ("farm/scheduler/x.py", "from farm.protocols import wire", "lower numbers"),
        ("farm/call.py", "from farm import worker", "lower numbers"),
        ("farm/worker/x.py", "from farm.dispatcher import Dispatcher", "lower numbers"),
        ("farm/sweep/x.py", "def f():\n    from farm.server import app", "lower numbers"),
        ("farm/cli/x.py", "from farm import Model", "above all"),
        ("farm/cli/x.py", "import farm", "above all"),
        ("farm/cli/x.py", "def f():\n    import json", "only extras"),
        ("farm/cli/x.py", "def f():\n    import rich", "only extras"),
        ("farm/sweep/x.py", "import matplotlib", "in functions only"),
        ("farm/sweep/x.py", "import scipy", "in functions only"),
        ("farm/transports/x.py", "import zmq", "in functions only"),
        ("farm/server/x.py", "from farm.transports.zmq import ZmqListener", "in functions only"),
        ("farm/experiment/session.py", "import time", "pure part"),
        ("farm/experiment/x.py", "import torch", "in functions only"),
        ("farm/experiment/x.py", "from farm.experiment.models import fit", "in functions only"),
        ("farm/experiment/models/x.py", "import matplotlib", "in functions only"),
        ("farm/sweep/x.py", "def f():\n    import leftpad", "neither a dependency"),
    ],
)
def test_broken_import_rule_is_seen(path: str, source: str, complaint: str) -> None:
    (found,) = violations(path, source, base=BASE, extras=OPTIONAL)
    assert complaint in found


def test_allowed_imports_pass() -> None:
    source = "import json\nimport numpy\nfrom farm import call\nfrom farm.worker import run\n"
    source += "def f():\n    import matplotlib.pyplot\n    import scipy.stats\n"
    assert violations("farm/transports/x.py", source, base=BASE, extras=OPTIONAL) == []
    source = "import torch\nfrom botorch.fit import fit_gpytorch_mll\n"
    source += "from farm.experiment.models import fit\nfrom farm.sweep import plan\n"
    assert violations("farm/experiment/models/x.py", source, base=BASE, extras=OPTIONAL) == []
    source = "def f():\n    from farm.experiment.models import fit\n"
    assert violations("farm/experiment/x.py", source, base=BASE, extras=OPTIONAL) == []


def test_every_part_has_a_level() -> None:
    parts = {path.relative_to(ROOT / "farm").parts[0].removesuffix(".py") for path in FARM}
    assert parts - {"__init__"} <= set(LEVELS)


@pytest.mark.parametrize("path", FARM, ids=name_of)
def test_files_are_short(path: Path) -> None:
    length = len(path.read_text().splitlines())
    assert length <= LONGEST_FILE, f"{length} lines; split it by what its parts do"


@pytest.mark.parametrize("path", FARM, ids=name_of)
def test_module_names_say_what_they_do(path: Path) -> None:
    assert not any(FORBIDDEN_NAMES.search(part) for part in path.with_suffix("").parts[-2:])


def holds_code(path: Path) -> bool:
    """Whether a file does more than describe itself and pass names on."""
    passive = ast.Import | ast.ImportFrom | ast.Expr | ast.Assign
    return any(not isinstance(node, passive) for node in ast.parse(path.read_text()).body)


def test_tests_mirror_the_package() -> None:
    missing = []
    for path in FARM:
        inside = path.relative_to(ROOT / "farm")
        name = "test_" + (path.parent.name if path.stem == "__init__" else path.stem)
        test = ROOT / "tests" / inside.parent / f"{name}.py"
        if name_of(path) in WITHOUT_TEST_FILE:
            assert not test.exists(), f"{name_of(test)} exists: take it off the list"
        elif not test.exists() and (inside.stem != "__init__" or holds_code(path)):
            missing.append(f"{name_of(path)}: expected {name_of(test)}")
    assert missing == []


def test_every_exception_exists() -> None:
    assert [name for name in WITHOUT_TEST_FILE if not (ROOT / name).exists()] == []


def test_every_test_file_has_its_module() -> None:
    """`test_x.py` and `test_x_more.py` in a folder of the package test module `x` there."""
    orphans = []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        inside = test.relative_to(ROOT / "tests")
        if len(inside.parts) == 1 or inside.parts[0] in NOT_MIRRORED:
            continue
        folder = ROOT / "farm" / inside.parent
        subjects = {path.stem for path in folder.glob("*.py")} | {folder.name}
        stem = inside.stem.removeprefix("test_")
        if not any(stem == name or stem.startswith(f"{name}_") for name in subjects):
            orphans.append(f"{name_of(test)}: no such module in {name_of(folder)}")
    assert orphans == []


@pytest.mark.parametrize("path", FARM, ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", path.read_text())


def test_changelog_names_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == farm.__version__


def test_extras_named_in_texts_exist() -> None:
    named = {
        (extra.strip(), name_of(path))
        for path in [*FARM, *DOCUMENTS]
        for extras in re.findall(r"modelfarm\[([\w, ]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    assert {(extra, where) for extra, where in named if extra not in EXTRAS} == set()


def prose(text: str) -> str:
    """A document without its code, where brackets mean other things than links."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """The headings of a Markdown document as links name them."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_somewhere() -> None:
    """A page that no other page names is lost to its readers."""
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in links(path)
    }
    pages = {path for path in DOCUMENTS if path.parent == ROOT / "docs"}
    assert {name_of(page) for page in pages if page.resolve() not in linked} == set()
