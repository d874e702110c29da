"""Pages in which nothing that was given as text is markup."""

from __future__ import annotations

from farm.sweep.page import page, section, table


def test_texts_are_escaped_and_bodies_are_not() -> None:
    text = page("a < b", "x & y", section("<i>", "n", "<svg/>") + table({"k<": "<v>"}))
    assert "<title>a &lt; b</title>" in text
    assert "x &amp; y" in text
    assert "<h2>&lt;i&gt;</h2>" in text
    assert "<svg/>" in text
    assert "<th>k&lt;</th><td>&lt;v&gt;</td>" in text
