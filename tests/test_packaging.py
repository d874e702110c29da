"""Recipes, images, workflow and citation agree with pyproject.toml, the Makefile and .ci/run."""

from __future__ import annotations

import ast
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # types of it are not among the tools

import farm
from tests.support import audit
from tests.support.lowest_versions import canonical, lowest
from tests.support.release_check import RELEASED, VERSION_IN, versions

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
BASE = lowest(PROJECT["dependencies"])
PYTHON = PROJECT["requires-python"].removeprefix(">=")
HATCHLING = lowest(PYPROJECT["build-system"]["requires"])["hatchling"]
CONTAINER = ROOT / "packaging" / "container"
VERBS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


# Versions


def test_every_file_names_the_same_version() -> None:
    assert versions() == dict.fromkeys(VERSION_IN, farm.__version__)


def test_another_version_is_noticed(tmp_path: Path) -> None:
    of_release = VERSION_IN | RELEASED
    for name in of_release:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    citation = tmp_path / "CITATION.cff"
    citation.write_text(citation.read_text().replace(farm.__version__, "9.9.9"))
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    found = versions(tmp_path, of_release)
    assert (found.pop("CITATION.cff"), found.pop("CHANGELOG.md")) == ("9.9.9", "")
    assert set(found.values()) == {farm.__version__}
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [9.9.9] - 2030-01-01\n")
    assert versions(tmp_path, RELEASED) == {"CHANGELOG.md": "9.9.9"}


def test_the_citation_is_one_of_the_format() -> None:
    """Source: Citation File Format 1.2.0; `make release-check` validates it with cffconvert."""
    citation = loaded("CITATION.cff")
    assert {"authors", "cff-version", "message", "title"} <= set(citation)
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert all("name" in author or "family-names" in author for author in citation["authors"])


# Recipes


def test_the_conda_recipe_has_the_dependencies() -> None:
    recipe = loaded("packaging/conda/recipe.yaml")
    needs = recipe["requirements"]
    run = lowest([text.replace(" ", "") for text in needs["run"]])
    assert run.pop("python") == PYTHON
    assert run == BASE
    host = lowest([text.replace(" ", "") for text in needs["host"]])
    assert host == {"python": PYTHON, "pip": "", "hatchling": HATCHLING}
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]


def test_the_spack_recipe_has_the_dependencies() -> None:
    tree = ast.parse((ROOT / "packaging/spack/packages/py_modelfarm/package.py").read_text())
    found: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "depends_on":
            options = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            (spec,) = map(ast.literal_eval, node.args)
            name, _, version = spec.partition("@")
            kind = options["type"]
            kinds = (kind,) if isinstance(kind, str) else kind
            found.setdefault(options.get("when", ""), {})[name] = version, kinds
    both = "build", "run"
    always = found.pop("")
    assert always.pop("python") == (f"{PYTHON}:", both)
    assert always.pop("py-hatchling") == (f"{HATCHLING}:", ("build",))
    assert always == {f"py-{name}": (f"{version}:", both) for name, version in BASE.items()}
    assert found == {
        f"+{extra}": {
            f"py-{name}": (f"{version}:", both)
            for name, version in lowest(PROJECT["optional-dependencies"][extra]).items()
        }
        for extra in ("plot", "xarray")
    }


def test_names_of_packages_are_compared_as_indexes_do() -> None:
    assert canonical("prometheus_client") == "prometheus-client"


# Images


@pytest.mark.parametrize("name", ["Dockerfile", "farm.def"])
def test_an_image_has_all_that_the_build_needs(name: str) -> None:
    text = (CONTAINER / name).read_text()
    (python,) = re.findall(r"python:(3\.\d+)-slim", text)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    packages = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    licences = {file for file in PROJECT["license-files"] if file.split("/")[0] not in packages}
    needed = {"pyproject.toml", PROJECT["readme"], *licences, "constraints.txt", *packages}
    for file in needed:
        assert re.search(rf"^\s*(COPY .*)?\b{re.escape(file)} ", text, re.MULTILINE), file
    for extra in re.findall(r"/source\[([\w,]+)\]", text)[0].split(","):
        assert extra in PROJECT["optional-dependencies"]


def test_the_build_sees_nothing_else() -> None:
    ignored = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    seen = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (.*) \S+$", (CONTAINER / "Dockerfile").read_text(), re.MULTILINE)
    assert seen == set(" ".join(copied).split())


# Verbs


def test_the_workflow_has_the_verbs_of_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    in_script = {
        verb
        for line in re.findall(r"\bmake ([a-z -]+)", script)
        for verb in line.split()
        if verb in VERBS
    }
    jobs = loaded(".github/workflows/ci.yml")["jobs"]
    in_workflow = {v for verbs in jobs["verb"]["strategy"]["matrix"]["verb"] for v in verbs.split()}
    assert in_workflow == in_script
    assert {"check", "test", "test-slow"} <= in_script <= VERBS
    (nightly,) = loaded(".github/workflows/nightly.yml")["jobs"].values()
    assert nightly["steps"][-1]["run"].split()[-2:] == ["make", "nightly"]
    assert "nightly" in VERBS - in_script


def test_hooks_run_verbs() -> None:
    hooks = loaded(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert {hook["entry"] for hook in hooks} == {"make format", "make check"}
    assert {"format", "check"} <= VERBS


# Audit


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
SKIPPED = {"name": "rich", "skip_reason": "not found"}
WEAK = {"name": "h11", "version": "0.14", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.16"]}]}


@pytest.mark.parametrize(
    ("text", "status", "last"),
    [
        (report(CLEAN, CLEAN), 0, "2 of 2 packages are known to pypi, and none has"),
        (report(CLEAN, WEAK), 1, "raise these"),
        (report(SKIPPED, SKIPPED), 3, "0 of 2 packages are known to pypi: too few"),
        ("", 3, "pypi could not be asked: no route"),
    ],
)
def test_an_audit_is_only_clean_if_it_was_one(text: str, status: int, last: str) -> None:
    """pip-audit itself ends with status 0 where the index knows none of the packages."""
    found, lines = audit.verdict(text, "Traceback\nno route\n\n", "pypi")
    assert found == status
    assert last in lines[-1]
    if status == audit.FINDINGS:
        assert lines[0] == "h11 0.14: PYSEC-1, corrected in 0.16"


def test_an_audit_is_of_the_published_versions() -> None:
    assert audit.requirements("a==1.0+cpu\nB_c==2\n# d==3\n") == "a==1.0\nb-c==2\n"
