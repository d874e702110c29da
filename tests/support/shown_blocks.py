"""The blocks of code in a document, and how each of them is tried.

A comment above a block says why it is not run as it stands, or where it is:
`<!-- not run: needs a cluster -->`, `<!-- run in tests/slurm -->`, `<!-- run, and fails -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCED = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n)(?:(?: {4}.*)?\n)*)")
COMMENT = re.compile(r"<!-- (not run: [^>]+|run in [^>]+|run, and fails) -->\n+$")
FAILS = "run, and fails"
TITLE = re.compile(r'title="([^"]*)"')

PROGRAMS = {
    *("cd", "cc", "curl", "eval", "export", "farm", "git", "make", "mkdir", "pip", "promtool"),
    *("python", "python3", "sbatch", "sinfo", "slurm/dev-cluster", "srun"),
}
"""First words of lines by which an indented block is known as one of a shell."""


def text_of(page: str) -> str:
    """Return the text of a page and of those in its folder, in the order that the site has.

    page: a path below the project: docs/models.md also stands for docs/models/files.md.
    """
    found = [ROOT / page]
    if found[0].with_suffix("").is_dir():
        inner = rf" ({found[0].stem}/[\w-]+\.md)$"
        listed = re.finditer(inner, (ROOT / "mkdocs.yml").read_text(), re.M)
        found += [ROOT / "docs" / match[1] for match in listed]
    return "\n".join(path.read_text() for path in found)


@dataclass(frozen=True)
class Block:
    """A block of code. language: "" if it names none; title: of a file, or "prints".

    note: the comment above it; line: of its first line in the document.
    """

    language: str
    title: str
    text: str
    note: str
    line: int


def is_shell(block: Block) -> bool:
    """Whether a block has commands: it says so, or each of its lines begins with a program."""
    lines = block.text.replace("\\\n", " ").splitlines()
    firsts = {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}
    return block.language == "sh" or (not block.language and firsts <= PROGRAMS)


def blocks(page: str) -> list[Block]:
    """Return all blocks of a document in Markdown, fenced or indented, in their order."""
    return sorted(_blocks(page), key=lambda block: block.line)


def _blocks(page: str) -> Iterator[Block]:
    rest = list(page)
    for found in FENCED.finditer(page):
        language, _, more = found["info"].partition(" ")
        title = TITLE.search(more)
        indent = len(found["indent"])
        text = "".join(line[indent:] for line in found["text"].splitlines(keepends=True))
        yield _block(page, found.start(), language, title[1] if title else "", text)
        for place in range(found.start(), found.end()):
            if page[place] != "\n":
                rest[place] = "."
    for found in INDENTED.finditer("".join(rest)):
        text = "".join(line[4:] or "\n" for line in found[1].splitlines(keepends=True))
        if not _in_list("".join(rest[: found.start()])):
            yield _block(page, found.start(), "", "", text)


def _in_list(before: str) -> bool:
    """Whether the paragraph before is an item of a list, whose continuation is indented, too."""
    paragraph = before.rstrip().rsplit("\n\n", 1)[-1]
    return re.match(r"(- |\d+\. | {4})", paragraph) is not None


def _block(page: str, start: int, language: str, title: str, text: str) -> Block:
    note = COMMENT.search(page[:start])
    line = page.count("\n", 0, start) + 1
    return Block(language, title, text, note[1] if note else "", line)
