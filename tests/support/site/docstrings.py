"""An extension of griffe, which reads docstrings for the reference of the Python names."""

from __future__ import annotations

from typing import Any

import griffe

from tests.support.site.docstring_lists import as_markdown


class Lists(griffe.Extension):  # type: ignore[misc]  # griffe is not where types are checked
    """Rewrites the docstring of each object that griffe has read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
