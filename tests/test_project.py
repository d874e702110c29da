"""The project's own rules: imports, sizes, names, mirrored tests, one version, links, extras."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import farm
from farm.descriptors import BUILT_IN
from farm.transitions import TransitionTable
from tests.support.diagrams import TABLES, diagram
from tests.support.layers import LEVELS, part_of, table, violations
from tests.support.lowest_versions import NOT_TESTED_LOWER, lowest, lowest_of, pins, release
from tests.support.private_names import (
    Use,
    defined_in,
    foreign_private_names,
    is_inherited,
    replaced_names,
)
from tests.support.shape import Facts, counts, facts_of
from tests.support.syntax import nodes_of

ROOT = Path(__file__).parent.parent
FARM = sorted((ROOT / "farm").rglob("*.py"))
FOLDERS = ("docs", "examples", "packaging", "slurm")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(x for d in FOLDERS for x in ROOT.glob(f"{d}/**/*.md"))])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

LONGEST_FILE = 600
"""One thought in a long file is better than two files that are cut to fit."""

SHAPE = {
    "modules": 494,
    "lines": 91100,
    "fields": 8,
    "arguments": 3,
    "callbacks": 31,
    "far": 6,
    "outside": 129,
    "aliases": 22,
    "lone": 13,
    "full": 5,
}
"""The most that there may be of what makes the code heavy; `tests/support/shape.py` explains each.

Whoever makes the code lighter lowers them.
"""

FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|managers?|common)($|_)")

WITHOUT_TEST_FILE = {
    "farm/__main__.py": "one call of the command line, which tests/cli runs",
    "farm/experiment/config/definition.py": "values without code",
    "farm/experiment/models/libraries.py": "imports, whose warnings test_proposals.py would see",
    "farm/experiment/work.py": "values without code",
    "farm/ops/pytensor.py": "tests/samplers/test_pytensor_op.py, where PyTensor is installed",
    **dict.fromkeys(
        [f"{module.replace('.', '/')}.py" for module in BUILT_IN],
        "a value; test_descriptors.py reads all of these",
    ),
    "farm/protocols/interface.py": "values without code",
    "farm/storage/errors.py": "texts; test_lock.py and test_frames.py read them",
    "farm/worker/kinds.py": "tables; tests/worker/test_specs.py reads them",
    "farm/worker/line_program.py": "tests/worker/test_lines.py, with its only user",
    "farm/version.py": "one constant; this file compares it with the changelog",
}
"""Modules without their own test file, and why."""

ENDS_AT_ONCE = "documented; ends a process whose other threads may hang"
ENDING = (
    *("cli/front_door", "machine/lifeline", "provision/local/process", "provision/local/rank"),
    *("worker/host/host", "worker/line_program", "worker/mpi/group", "worker/servers"),
)
FOREIGN_PRIVATE_NAMES = {
    **{(f"farm/{path}.py", "os._exit"): ENDS_AT_ONCE for path in ENDING},
    (
        "farm/machine/forking.py",
        "os._exit",
    ): "documented; ends a forked process without running what its parent has to run",
    (
        "farm/machine/memory_file.py",
        "from _thread import start_new_thread",
    ): "documented; `threading` takes a lock that its caller may hold",
    (
        "farm/sweep/sensitivity/methods.py",
        "warnings.formatwarning",
    ): "documented; SALib replaces it, and here the old one comes back",
    (
        "farm/ops/jax.py",
        "jax.errors.JaxRuntimeError.__init__",
    ): "XLA turns an exception of a callback into a text; here the FarmError comes out again",
    (
        "farm/protocols/umbridge/files.py",
        "sys.argv",
    ): "documented; a model file must not read the arguments of farm as its own",
}
"""Names of other packages that begin with an underscore or are assigned to, and why."""

NOT_MIRRORED = {
    "contracts",
    "conformance",
    "grid_engine",
    "samplers",
    "slurm",
    "support",
    "system",
}
"""Test folders that go across the package: one suite over several modules, or over processes."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def distributions(requirements: list[str]) -> frozenset[str]:
    names = (re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0] for text in requirements)
    return frozenset(name.lower() for name in names)


BASE = distributions(PROJECT["dependencies"])
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"examples", "tools", "test", "dev"}
OPTIONAL = distributions(
    [text for extra, texts in EXTRAS.items() if extra not in FOR_DEVELOPERS for text in texts]
) | {"dask"}


PARTS = [path for path in FARM if path != ROOT / "farm" / "__init__.py"]
"""All names but the public ones, which belong to the package above every part."""


class Read(NamedTuple):
    """What the tests below ask of one file: its tree is made once for all of them."""

    broken: list[str]
    own: frozenset[str]
    private: list[Use]
    replaced: list[Use]
    classes: list[str]
    facts: Facts


@cache
def read(path: Path) -> Read:
    text = path.read_text()
    return Read(
        violations(name_of(path), text, base=BASE, extras=OPTIONAL) if path in PARTS else [],
        defined_in(text),
        foreign_private_names(text, frozenset()),
        replaced_names(text),
        [node.name for node in nodes_of(text) if isinstance(node, ast.ClassDef)],
        facts_of(text),
    )


def test_imports_point_one_way() -> None:
    """One test for all files, as those below: thousands of tests take long to collect."""
    assert {name_of(path): read(path).broken for path in PARTS if read(path).broken} == {}


def test_the_code_is_no_heavier() -> None:
    facts = {name_of(path): read(path).facts for path in FARM if "_pb2" not in path.name}
    found = counts(facts)
    numbers = {name: len(places) for name, places in found.items()}
    numbers |= {"modules": len(facts), "lines": sum(each.lines for each in facts.values())}
    grown = {name: found.get(name) for name, most in SHAPE.items() if numbers[name] > most}
    assert grown == {}, f"{numbers}, of {SHAPE}"
    assert numbers.keys() == SHAPE.keys()


HEAVY = """
from collections.abc import Callable
OnDone = Callable[[int], None]
class Wide:
    def __init__(self, a, b, c, d, e, f, g, done: OnDone | None):
        self.a = self.b = self.c = self.d = self.e = self.f = self.g = self.h = 0
        self.i = self.j = self.k = self.l = self.m = done
        self.a.far = 1
def change(wide):
    wide.a = 2
    wide.unknown = 3
"""


def test_what_is_heavy_is_counted() -> None:
    light = "import sys\nfrom farm import heavy\nsys.stdout.x = 0\n"
    texts = {"farm/heavy.py": HEAVY, "farm/light.py": light, "farm/long.py": "x = 0\n" * 471}
    found = counts({path: facts_of(text) for path, text in texts.items()})
    assert found == {
        "fields": ["farm/heavy.py Wide 13"],
        "arguments": ["farm/heavy.py Wide 8"],
        "callbacks": ["farm/heavy.py Wide"],
        "far": ["farm/heavy.py self.a.far"],
        "outside": ["farm/heavy.py wide.a"],
        "aliases": ["farm/heavy.py OnDone"],
        "lone": ["farm/heavy.py 11"],
        "full": ["farm/long.py 471"],
    }


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("farm/protocols/mip/x.py", "import asyncio", "pure part"),
        ("farm/protocols/mip/x.py", "from farm.protocols.kserve import codec", "lower numbers"),
        ("farm/scheduler/x.py", "from time import monotonic", "pure part"),
        ("farm/scheduler/x.py", "from farm.protocols.mip import calls", "lower numbers"),
        ("farm/call.py", "from farm import worker", "lower numbers"),
        ("farm/worker/x.py", "from farm.dispatcher import Dispatcher", "lower numbers"),
        ("farm/sweep/x.py", "def f():\n    from farm.server import app", "lower numbers"),
        ("farm/cli/x.py", "from farm import Model", "above all"),
        ("farm/cli/x.py", "import farm", "above all"),
        ("farm/cli/x.py", "def f():\n    import json", "only extras"),
        ("farm/cli/x.py", "def f():\n    import rich", "only extras"),
        ("farm/sweep/x.py", "import matplotlib", "in functions only"),
        ("farm/sweep/x.py", "import scipy", "in functions only"),
        ("farm/sweep/x.py", "if not TYPE_CHECKING:\n    import scipy", "in functions only"),
        ("farm/transports/x.py", "import zmq", "in functions only"),
        (
            "farm/server/x.py",
            "from farm.transports.zmq.listener import ZmqListener",
            "in functions only",
        ),
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
    source = "if TYPE_CHECKING:\n    import pandas\n    import scipy\n"
    assert violations("farm/sweep/x.py", source, base=BASE, extras=OPTIONAL) == []
    source = "import torch\nfrom botorch.fit import fit_gpytorch_mll\n"
    source += "from farm.experiment.models import fit\nfrom farm.sweep import plan\n"
    assert violations("farm/experiment/models/x.py", source, base=BASE, extras=OPTIONAL) == []
    source = "def f():\n    from farm.experiment.models import fit\n"
    assert violations("farm/experiment/x.py", source, base=BASE, extras=OPTIONAL) == []


def test_the_architecture_shows_the_table_of_layers() -> None:
    assert table() in (ROOT / "docs" / "architecture.md").read_text()


@pytest.mark.parametrize("phases", TABLES, ids=lambda phases: str(phases.name))
def test_the_page_of_phases_shows_each_table(phases: TransitionTable[Any]) -> None:
    assert diagram(phases) in (ROOT / "docs" / "explanation" / "phases.md").read_text()


def test_no_name_hides_a_module_of_python() -> None:
    """A program that runs inside `farm/` would import ours in place of Python's."""
    names = {
        part for path in FARM for part in path.relative_to(ROOT / "farm").with_suffix("").parts
    }
    assert names & sys.stdlib_module_names == set()


def test_every_part_has_a_level() -> None:
    without_code = {"farm/__init__.py", "farm/protocols/__init__.py"}
    parts = {part_of(name_of(path)) for path in FARM if name_of(path) not in without_code}
    assert parts == set(LEVELS)


def test_no_private_name_of_another_package_is_used() -> None:
    inherited = frozenset().union(*(read(path).own for path in FARM))
    found = {
        (name_of(path), use.text)
        for path in FARM
        for use in [*read(path).private, *read(path).replaced]
        if not is_inherited(use, inherited)
    }
    assert found == set(FOREIGN_PRIVATE_NAMES)


@pytest.mark.parametrize(
    "source",
    [
        "import zmq._future",
        "from h5py._hl import files",
        "from concurrent.futures import _base",
        "from _thread import allocate_lock",
        "import sys\nsys._getframe()",
        "import asyncio\ndef f(loop): return loop._ready",
        "class A(Future):\n    def f(self): return self._state",
        "class A(Future):\n    def f(self): return super()._cancel()",
        "def f(server): return getattr(server, '_handlers')",
        "from operator import attrgetter\nkey = attrgetter('_value')",
        "import importlib\nimportlib.import_module('uvicorn._types')",
    ],
)
def test_private_name_of_another_package_is_seen(source: str) -> None:
    assert len(foreign_private_names(source, {"_name"})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A(B):\n    def f(self): return self._name",
        "class A(B):\n    def f(self): return super()._name()",
        "class A:\n    def _f(self): ...\ndef g(a): return a._f()",
        "class A:\n    def __init__(self): self._x = 0\n    def f(self, other): return other._x",
        "class A:\n    _x: int\n    def f(self, other): return hasattr(other, '_x')",
        "def f(point): return point._replace(x=1)",
        "for _ in range(3): print(_)",
        "def f(module): return module.__name__",
    ],
)
def test_own_private_name_passes(source: str) -> None:
    assert foreign_private_names(source, {"_name"}) == []


def test_private_name_on_another_object_must_be_of_the_same_file() -> None:
    source = "def f(other): return other._name"
    assert [use.text for use in foreign_private_names(source, {"_name"})] == ["other._name"]


@pytest.mark.parametrize(
    "source",
    [
        "import umbridge.um\numbridge.um.serve_models = print",
        "from http.client import HTTPConnection\nHTTPConnection.debuglevel = 1",
        "import sys as system\nsystem.argv, x = [], 0",
        "import socket\ndel socket.AF_UNIX",
    ],
)
def test_name_replaced_in_another_package_is_seen(source: str) -> None:
    assert len(replaced_names(source)) == 1


def test_own_names_may_be_assigned() -> None:
    source = "from farm.model import Model\nModel.name = ''\nself.x = x = 0"
    assert replaced_names(source) == []


def test_files_are_short() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in FARM}
    long = {name: count for name, count in lines.items() if count > LONGEST_FILE}
    assert long == {}, "split them by what their parts do"


def test_module_names_say_what_they_do() -> None:
    parts = {name_of(path): path.with_suffix("").parts[-2:] for path in FARM}
    assert [name for name in parts if any(map(FORBIDDEN_NAMES.search, parts[name]))] == []


def holds_code(path: Path) -> bool:
    """Whether a file does more than describe itself and re-export names."""
    passive = ast.Import | ast.ImportFrom | ast.Expr | ast.Assign
    return any(not isinstance(node, passive) for node in ast.parse(path.read_text()).body)


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in FARM:
        for name in read(path).classes:
            places.setdefault(name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


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


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [name_of(path) for path in FARM if marks.search(path.read_text())] == []


def test_changelog_names_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [farm.__version__]), "before the first release it has no other"


def test_extras_named_in_texts_exist() -> None:
    named = {
        (extra.strip(), name_of(path))
        for path in [*FARM, *DOCUMENTS]
        for extras in re.findall(r"(?:modelfarm\[|\bneeds\(\")([\w, ]+)[\]\"]", path.read_text())
        for extra in extras.split(",")
    }
    assert {(extra, where) for extra, where in named if extra not in EXTRAS} == set()


def test_the_lowest_versions_are_those_that_are_tested() -> None:
    """`constraints-lowest.txt` holds the minimum of each requirement in pyproject.toml."""
    pinned = pins((ROOT / "constraints-lowest.txt").read_text())
    expected = {**lowest_of(PROJECT), **NOT_TESTED_LOWER}
    wrong = {
        name: (version, pinned.get(name))
        for name, version in expected.items()
        if not version or release(pinned.get(name, "")) != release(version)
    }
    assert wrong == {}


def test_lowest_versions_are_read_from_requirements() -> None:
    texts = ["a_b>=8.2", "C[d,e]>=1.0,<2", "f==0.dev2", "g", "h; os_name == 'x'", "modelfarm[a]"]
    assert lowest(texts) == {"a-b": "8.2", "c": "1.0", "f": "0.dev2", "g": "", "h": ""}
    assert pins("# a==1\nB_c==2.0+cpu\n") == {"b-c": "2.0+cpu"}
    assert release("8.2") == release("8.2.0") != release("8.2.1")


def prose(text: str) -> str:
    """Return a document without its code, where brackets have other meanings than links."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the headings of a Markdown document as link targets."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        if not re.match(r"[a-z]+:", target):
            yield target


def leads_nowhere(path: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = (path.parent / file) if file else path
    return not target.exists() or bool(anchor and anchor not in anchors(target.read_text()))


def test_links_lead_somewhere() -> None:
    found = {name_of(path): list(links(path)) for path in DOCUMENTS}
    assert [(n, x) for n, some in found.items() for x in some if leads_nowhere(ROOT / n, x)] == []


def test_every_page_is_linked_from_somewhere() -> None:
    """Readers cannot find a page without a link to it."""
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in links(path)
    }
    pages = {path for path in DOCUMENTS if path.parent == ROOT / "docs"}
    assert {name_of(page) for page in pages if page.resolve() not in linked} == set()
