"""Pages of reports: escaped texts, tables, and interactive pages whose scripts alone run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Array, ModelInfo, TensorInfo
from farm.report.page import (
    LIBRARY,
    MOST_ROWS,
    Html,
    as_json,
    facts,
    folded,
    library,
    packed,
    preformatted,
    section,
    table,
    tensors,
    write_interactive,
    write_page,
)
from tests.support.wheel import distributions_of_farm


def test_texts_are_escaped_and_blocks_are_not(tmp_path: Path) -> None:
    blocks = [
        section("<i>", "a & b", Html("<svg/>"), facts({"k<": "<v>"})),
        folded("<s>", preformatted("<p>\n  x")),
        table(["<c>"], [["<d>"]]),
    ]
    write_page(tmp_path / "p.html", title="a < b", note="x & y", blocks=blocks)
    text = (tmp_path / "p.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in text
    assert "<h1>a &lt; b</h1>" in text
    assert "<h2>&lt;i&gt;</h2>" in text
    assert '<p class="note">a &amp; b</p><svg/>' in text
    assert "<th>k&lt;</th><td>&lt;v&gt;</td>" in text
    assert "<summary>&lt;s&gt;</summary><pre>&lt;p&gt;\n  x</pre>" in text
    assert "<th>&lt;c&gt;</th></tr><tr><td>&lt;d&gt;</td>" in text


def test_numbers_of_a_table_are_rounded_and_aligned() -> None:
    text = table(["point", "load", "error"], [[1234567, 0.123456789, "lost"]])
    assert '<th class="n">point</th><th class="n">load</th><th>error</th>' in text
    assert '<td class="n">1234567</td><td class="n">0.12346</td><td>lost</td>' in text


@pytest.mark.parametrize("left_out", [-MOST_ROWS, 0, 2])
def test_a_long_table_says_how_many_rows_it_leaves_out(left_out: int) -> None:
    text = table(["n"], [[number] for number in range(MOST_ROWS + left_out)])
    assert text.count("<td") == MOST_ROWS + min(left_out, 0)
    assert ("and 2 more" in text) == ("more" in text) == (left_out > 0)


def test_a_model_has_columns_of_units_if_it_states_any() -> None:
    plain = ModelInfo("beam", (TensorInfo("E", (3,)),), (TensorInfo("u", ()),))
    assert "<th>shape</th><th>type</th></tr>" in tensors(plain)
    stated = replace(plain, outputs=(TensorInfo("u", (), unit="<m>", description="at the end"),))
    shown = tensors(stated)
    assert "<th>unit</th><th>description</th>" in shown
    assert "<td>input</td><td>E</td><td>(3,)</td><td>float64</td><td></td><td></td>" in shown
    assert "<td>&lt;m&gt;</td><td>at the end</td>" in shown


def test_a_page_runs_no_script_loads_nothing_and_says_when_it_was_written(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", title="t", note="x & y", blocks=[])
    text = (tmp_path / "page.html").read_text("utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["script-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert re.search(r"x &amp; y; report of \d{4}-\d\d-\d\d \d\d:\d\d</p>", text)


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


def test_a_page_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out.html").write_text("old")
    with pytest.raises(TypeError):
        page(tmp_path, data={"a": object()})
    assert (tmp_path / "out.html").read_text() == "old"


@pytest.mark.parametrize(
    ("title", "shown"), [("{written}", "{written}"), ("a\ud800b", "a?b")], ids=["name", "surrogate"]
)
def test_odd_texts_stay_and_lone_surrogates_are_replaced(
    tmp_path: Path, title: str, shown: str
) -> None:
    assert f"<h1>{shown}</h1>" in page(tmp_path, title=title)
    write_page(tmp_path / "static.html", title=title, note=title, blocks=[])
    assert f"<h1>{shown}</h1>" in (tmp_path / "static.html").read_text()


def test_json_has_no_brackets_of_html() -> None:
    text = as_json(["<b>", "a & b", "\u2028"])
    assert not set("<>") & set(text)
    assert json.loads(text) == ["<b>", "a & b", "\u2028"]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_numbers_that_are_not_finite_are_kept(dtype: str) -> None:
    numbers = np.array([1.5, np.nan, np.inf, -np.inf])
    assert np.array_equal(unpacked(packed(numbers, dtype)), numbers, equal_nan=True)
    column = packed(np.array([[1e300, np.inf]]), "f4")
    assert column["type"] == "f8"
    assert unpacked(column).tolist() == [1e300, np.inf]
    assert packed(np.array([1.0]), "f4")["type"] == "f4"
