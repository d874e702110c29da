"""Loads model files that end in `umbridge.serve_models(...)`, as all published benchmarks do.

Such a file would start a server of its own on every address of the machine and never return. While
it is loaded, `serve_models` passes its models to farm instead.
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
"""The package's modules that export `serve_models`."""


@contextlib.contextmanager
def models_instead_of_servers(path: str, served: list[Any]) -> Iterator[None]:
    """Make `umbridge.serve_models` append its models to `served` and return, within the block.

    The package is not imported for that. path: the content of `sys.argv` within the block, because
    the file does not know farm's command line.
    """
    replaced: list[tuple[Any, Any]] = []

    def serve_models(models: Sequence[Any], *_: Any, **__: Any) -> None:
        served.extend(models)

    def replace() -> None:
        for place in PLACES:
            module: Any = sys.modules.get(place)
            original = getattr(module, "serve_models", None)
            if module is not None and original is not None:
                replaced.append((module, original))
                module.serve_models = serve_models

    finder = _AfterImport(replace)
    if PACKAGE in sys.modules:
        replace()
    else:
        sys.meta_path.insert(0, finder)
    arguments, sys.argv = sys.argv, [path]
    try:
        yield
    finally:
        sys.argv = arguments
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for module, original in replaced:
            module.serve_models = original


class _AfterImport(MetaPathFinder, Loader):
    """Calls back when any module has imported the package."""

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
