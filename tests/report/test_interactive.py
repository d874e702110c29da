"""Interactive pages: self-contained, safe against texts in them, with the library as shipped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Array
from farm.report.interactive import LIBRARY, as_json, library, packed, write_interactive
from tests.support.wheel import distributions_of_farm

VENDORED = Path(str(files("farm.report").joinpath("vendored")))
EVIL = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)>"


def unpacked(column: dict[str, str]) -> Array:
    return np.frombuffer(base64.b64decode(column["data"]), f"<{column['type']}")


def page(folder: Path, *, data: Any = None, **texts: str) -> str:
    (folder / "page").mkdir()
    (folder / "page" / "body.html").write_text("<h1>{title}</h1>")
    (folder / "page" / "style.css").write_text("h1 { color: red }")
    (folder / "page" / "a.js").write_text("const one = 1;")
    (folder / "page" / "b.js").write_text("function start() { return one; }")
    out = folder / "out.html"
    told = {"title": "t", **texts}
    write_interactive(out, folder / "page", ["a.js", "b.js"], title=EVIL, texts=told, data=data)
    return out.read_text(encoding="utf-8")


def scripts_of(text: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", text, re.DOTALL)


def test_the_library_is_the_one_that_its_readme_names() -> None:
    readme = (VENDORED / "README.md").read_text()
    checksum = hashlib.sha256((VENDORED / LIBRARY).read_bytes()).hexdigest()
    assert f"`{checksum}`" in readme
    assert all(f"`{path.name}`" in readme for path in VENDORED.iterdir() if path.suffix != ".md")


@pytest.mark.slow
def test_the_wheel_has_library_licences_and_the_files_of_pages(tmp_path: Path) -> None:
    wheel, _ = distributions_of_farm(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        content = archive.read(f"farm/report/vendored/{LIBRARY}")
    assert content.decode() == library()
    assert {f"farm/report/vendored/{path.name}" for path in VENDORED.iterdir()} <= set(names)
    own = Path(str(files("farm.sweep.report").joinpath("page")))
    assert {f"farm/sweep/report/page/{path.name}" for path in own.iterdir()} <= set(names)


def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    text = page(tmp_path, data={"error": EVIL})
    scripts = scripts_of(text)
    assert [scripts[0] == library(), "const one = 1;" in scripts[1], len(scripts)] == [
        True,
        True,
        2,
    ]
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"] == " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules


def test_texts_of_data_and_title_cannot_end_their_elements(tmp_path: Path) -> None:
    text = page(tmp_path, data={"error": EVIL})
    assert EVIL not in text
    assert "<title>&lt;/script&gt;" in text
    (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data) == {"error": EVIL}


def test_a_text_that_looks_like_the_name_of_another_stays(tmp_path: Path) -> None:
    assert "<h1>{written}</h1>" in page(tmp_path, title="{written}")


def test_a_page_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out.html").write_text("old")
    with pytest.raises(TypeError):
        page(tmp_path, data={"a": object()})
    assert (tmp_path / "out.html").read_text() == "old"


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    assert "<h1>a?b</h1>" in page(tmp_path, title="a\ud800b")


def test_json_has_no_brackets_of_html() -> None:
    text = as_json(["<b>", "a & b", "\u2028"])
    assert not set("<>") & set(text)
    assert json.loads(text) == ["<b>", "a & b", "\u2028"]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_numbers_that_are_not_finite_are_kept(dtype: str) -> None:
    numbers = np.array([1.5, np.nan, np.inf, -np.inf])
    assert np.array_equal(unpacked(packed(numbers, dtype)), numbers, equal_nan=True)


def test_single_precision_is_not_used_beyond_its_range() -> None:
    column = packed(np.array([[1e300, np.inf]]), "f4")
    assert column["type"] == "f8"
    assert unpacked(column).tolist() == [1e300, np.inf]
    assert packed(np.array([1.0]), "f4")["type"] == "f4"
