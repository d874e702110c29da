"""Every block of code in the documents is tried, or a comment above it says why not."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.shown_blocks import FAILS, Block, blocks, is_shell
from tests.support.shown_commands import CODE, commands, unknown_options

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(
            page
            for folder in ("docs", "examples", "slurm")
            for page in (ROOT / folder).rglob("*.md")
        ),
    ]
)
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in DOCUMENTS}
BLOCKS = {name: blocks(text) for name, text in TEXTS.items()}

PYTHON_RUNS_IN = {
    "README.md": "tests/test_readme.py",
    "docs/client.md": "tests/client/test_client_page.py",
    "docs/dask.md": "tests/transports/dask/test_dask_page.py",
    "docs/experiments.md": "tests/conformance/test_experiments_page.py",
    "docs/graphpipe.md": "tests/conformance/test_graphpipe_page.py",
    "docs/index.md": "tests/test_tutorials.py",
    "docs/kserve.md": "tests/conformance/test_kserve_page.py",
    "docs/mip.md": "tests/conformance/test_mip_page.py",
    "docs/models.md": "tests/test_documents.py",
    "docs/mpi.md": "tests/test_documents.py",
    "docs/multilevel.md": "tests/samplers/test_multilevel.py",
    "docs/ops.md": "tests/ops/test_ops_page.py",
    "docs/record.md": "tests/test_pages.py",
    "docs/samplers.md": "tests/samplers/page.py",
    "docs/seeing.md": "tests/test_pages.py",
    "docs/sensitivity.md": "tests/test_sensitivity_page.py",
    "docs/slurm.md": "tests/test_pages.py",
    "docs/sweeps.md": "tests/test_sweeps_page.py",
    "docs/tutorials/first-model.md": "tests/test_tutorials.py",
    "docs/tutorials/first-sweep.md": "tests/test_tutorials.py",
    "docs/tutorials/posterior.md": "tests/test_tutorials.py",
    "docs/tutorials/simulator.md": "tests/test_tutorials.py",
    "docs/umbridge.md": "tests/test_pages.py",
}
"""The test that runs the Python of a page; each of them counts the blocks that it runs."""

SHELL_RUNS_IN = {
    "README.md": "tests/test_readme.py",
    "docs/client.md": "tests/test_shell_pages.py",
    "docs/clusters.md": "tests/provision/batch/test_batch_page.py",
    "docs/containers.md": "tests/worker/containers/test_containers_page.py",
    "docs/dask.md": "tests/transports/dask/test_dask_commands.py",
    "docs/experiments.md": "tests/conformance/test_experiments_page.py",
    "docs/graphpipe.md": "tests/test_shell_pages.py",
    "docs/index.md": "tests/test_tutorials.py",
    "docs/kserve.md": "tests/test_shell_pages.py",
    "docs/lines.md": "tests/test_shell_pages.py",
    "docs/mip.md": "tests/test_shell_pages.py",
    "docs/models.md": "tests/test_shell_pages.py",
    "docs/mpi.md": "tests/worker/mpi/test_mpi_page.py",
    "docs/multilevel.md": "tests/test_shell_pages.py",
    "docs/record.md": "tests/test_shell_pages.py",
    "docs/security.md": "tests/conformance/test_nginx.py",
    "docs/seeing.md": "tests/test_shell_pages.py",
    "docs/sensitivity.md": "tests/test_sensitivity_page.py",
    "docs/slurm.md": "tests/slurm/test_shown_blocks.py",
    "docs/sweeps.md": "tests/test_shell_pages.py",
    "docs/tutorials/first-model.md": "tests/test_tutorials.py",
    "docs/tutorials/first-sweep.md": "tests/test_tutorials.py",
    "docs/tutorials/posterior.md": "tests/test_tutorials.py",
    "docs/tutorials/simulator.md": "tests/test_tutorials.py",
    "docs/umbridge.md": "tests/test_shell_pages.py",
    "slurm/README.md": "tests/slurm/test_shown_blocks.py",
}
"""The test that types the blocks of a shell of a page, all of them that have no comment above."""


def read_json(text: str) -> None:
    """Read one value, or one on each line."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            json.loads(line)


READERS: dict[str, Callable[[str], object]] = {"json": read_json, "toml": tomllib.loads}
SHOWN_ONLY = {
    "text": "output, or a drawing",
    "c": "compiled in tests/test_tutorials.py",
    "cpp": "a client in C++: tests/conformance has what it sends",
    "julia": "a client or reader in Julia, which is not in the environment of tests",
    "matlab": "a client or reader in MATLAB, which has no free licence",
    "mermaid": "drawn: tests/test_site.py",
    "nginx": "tests/conformance runs nginx with it",
    "octave": "tests/samplers, where Octave is",
    "r": "tests/samplers, where R is",
    "yaml": "tests/transports/dask/test_dask_page.py",
}
"""Languages that no test of this file can try, and where they are tried, or why not."""


def topic_of(name: str) -> str:
    """Return the page whose folder has this page; itself if none has: `docs/models.md`."""
    topic = f"{Path(name).parent.as_posix()}.md"
    return topic if (ROOT / topic).exists() else name


def doubt(name: str, block: Block) -> str:
    """Return why it is not known how a block is tried; "" if it is."""
    if block.note.startswith("run in "):
        place = re.match(r"run in ([\w/.-]*\w)", block.note)
        return "" if place and (ROOT / place[1]).exists() else "no such test"
    if block.note:
        return ""
    if block.language == "python":
        return "" if topic_of(name) in PYTHON_RUNS_IN else "no test runs the Python of this page"
    if is_shell(block):
        return (
            "" if topic_of(name) in SHELL_RUNS_IN else "no test types the shell blocks of this page"
        )
    if block.language in {*READERS, *SHOWN_ONLY, "ini"}:
        return ""
    return "neither a language nor a comment above it says what it is"


def test_every_block_is_of_a_known_kind() -> None:
    doubts = {
        f"{name}, line {block.line}: {block.text[:40]!r}": doubt(name, block)
        for name, shown in BLOCKS.items()
        for block in shown
    }
    assert {where: why for where, why in doubts.items() if why} == {}


def test_every_page_with_blocks_of_a_shell_has_a_test() -> None:
    """Those that no comment explains."""
    shown = (n for n, page in BLOCKS.items() if any(is_shell(b) and not b.note for b in page))
    assert {topic_of(name) for name in shown} == set(SHELL_RUNS_IN)


def test_a_block_without_a_test_is_seen() -> None:
    typed = Block("sh", "", "farm status\n", "", 1)
    assert doubt("docs/new.md", typed) == "no test types the shell blocks of this page"
    assert doubt("docs/seeing.md", typed) == ""
    assert doubt("docs/new.md", replace(typed, note="not run: needs a cluster")) == ""
    assert doubt("docs/new.md", replace(typed, note="run in tests/nowhere.py")) == "no such test"


@pytest.mark.parametrize("runs_in", [PYTHON_RUNS_IN, SHELL_RUNS_IN])
def test_every_test_of_a_page_exists_and_reads_it(runs_in: dict[str, str]) -> None:
    for page, test in runs_in.items():
        assert (ROOT / page).exists(), page
        text = (ROOT / test).read_text()
        assert Path(page).stem in text or Path(page).name == "index.md", (page, test)


def test_commands_have_the_options_that_are_shown() -> None:
    wrong = []
    for name, page in TEXTS.items():
        shown = [block.text for block in BLOCKS[name] if is_shell(block)] + CODE.findall(page)
        wrong += [f"{name}: {option}" for text in shown for option in unknown_options(text)]
    assert wrong == []


def test_shell_blocks_are_of_a_shell() -> None:
    texts = [block.text for shown in BLOCKS.values() for block in shown if block.language == "sh"]
    assert len(texts) > 40
    script = "\n".join(f"f{number}() {{\n{text}\n}}" for number, text in enumerate(texts))
    subprocess.run(
        ["bash", "-n"], input=re.sub(r"\s\.\.\.(?=\s)", "", script), text=True, check=True
    )


@pytest.mark.parametrize("name", [name for name, shown in BLOCKS.items() if shown])
def test_settings_can_be_read(name: str) -> None:
    for block in BLOCKS[name]:
        if block.language in READERS and not block.note:
            READERS[block.language](block.text)
        elif block.language == "ini":
            configparser.ConfigParser().read_string(block.text)


def test_an_option_that_is_gone_is_seen() -> None:
    assert unknown_options("farm serve beam.py --wrokers 4") != []
    assert unknown_options("sbatch -N 2 farm.sh x.py -- farm call --jsn 1") != []
    assert unknown_options("farm swep beam.py") == ["swep beam.py: no verb swep"]
    assert unknown_options("farm sweep plot s.h5 --colour") != []
    right = "farm serve beam.py -n 4 | cat\nfarm launcher --check sbatch --exclusive farm.sh  # --x"
    assert unknown_options(right) == []
    assert list(commands("farm a b && farm c \\\n  d")) == [["a", "b"], ["c", "d"]]


def test_blocks_are_found_with_their_notes() -> None:
    page = (
        "x\n\n    farm a\n\n    farm b\n\n- item\n\n    more\n\n"
        '<!-- run, and fails -->\n```sh\nfalse\n```\n\n   ```c title="x.c"\n   int x;\n   ```\n'
    )
    first, second, third = blocks(page)
    assert (first.text, first.language, first.line) == ("farm a\n\nfarm b\n\n", "", 3)
    assert (second.text, second.note) == ("false\n", FAILS)
    assert (third.text, third.title, third.language) == ("int x;\n", "x.c", "c")
