"""Model files that end in `umbridge.serve_models(...)`, as all published benchmarks do.

Run as they are, they would start a server of their own on every address of the machine and never
return. While such a file is loaded, `serve_models` hands its models over instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "umbridge"
PLACES = (PACKAGE, f"{PACKAGE}.um")
"""The package's modules through which `serve_models` is called."""


@contextlib.contextmanager
def models_instead_of_servers(path: str) -> Iterator[list[Any]]:
    """Within the block `umbridge.serve_models` adds its models to the list and returns.

    The package is not imported for that. path: what `sys.argv` holds within the block, since the
    command line is farm's and not one that the file knows.
    """
    served: list[Any] = []
    replaced: list[tuple[ModuleType, Any]] = []

    def serve_models(models: Sequence[Any], *_: Any, **__: Any) -> None:
        served.extend(models)

    def replace() -> None:
        for place in PLACES:
            module = sys.modules.get(place)
            original = getattr(module, "serve_models", None)
            if module is not None and original is not None:
                replaced.append((module, original))
                module.serve_models = serve_models  # type: ignore[attr-defined]  # it has one

    finder = _AfterImport(replace)
    if PACKAGE in sys.modules:
        replace()
    else:
        sys.meta_path.insert(0, finder)
    arguments, sys.argv = sys.argv, [path]
    try:
        yield served
    finally:
        sys.argv = arguments
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for module, original in replaced:
            module.serve_models = original  # type: ignore[attr-defined]  # as above


class _AfterImport(MetaPathFinder, Loader):
    """Calls back when the package has been imported, by whatever module."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self._loader: Loader | None = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback()
