"""The models that KServe clients may use: one record for HTTP and gRPC.

Unloading hides a model from KServe clients only, for the life of the farm: its workers keep it, and
other protocols still serve it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from farm.call import ModelInfo
from farm.dispatcher.backend import FirstModels
from farm.encoding.tensors import shown
from farm.errors import UnsupportedFeature
from farm.protocols.kserve.dialect import OPEN, OpenDialect
from farm.protocols.kserve.request import VERSION, Parameters


class Serves(Protocol):
    """Reports the models that are served."""

    @property
    def first_worker(self) -> FirstModels:
        """The wait for the first models."""

    def models(self) -> Mapping[str, ModelInfo]:
        """Return the models by name, described for the empty config."""

    def is_ready(self, model: str) -> bool:
        """Whether a model has a worker, or may get one."""


class Repository:
    """The models of a farm, except those that a client has unloaded."""

    def __init__(self, backend: Serves, dialect: OpenDialect = OPEN) -> None:
        """dialect: of its errors."""
        self._backend = backend
        self._dialect = dialect
        self._unloaded: set[str] = set()

    def models(self) -> dict[str, ModelInfo]:
        """Return the loaded models by name."""
        models = self._backend.models()
        return {name: info for name, info in models.items() if name not in self._unloaded}

    def model(self, name: str, version: str = "") -> ModelInfo:
        """Return a loaded model. Raises ModelNotFound, or Unavailable while it may yet come.

        Raises InvalidInput for a model or version that the dialect counts as a wrong argument.
        """
        info = self._known(name)
        self._dialect.check_version(name, version)
        if name in self._unloaded:
            raise self._dialect.unloaded_model(name)
        return info

    def _known(self, name: str) -> ModelInfo:
        models = self._backend.models()
        info = models.get(name)
        if info is None:
            if not models:
                raise self._backend.first_worker.no_model()
            raise self._dialect.unknown_model(name, models, self._backend.first_worker.unknown)
        return info

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a model accepts requests."""
        return name in self.models() and version in ("", VERSION) and self._backend.is_ready(name)

    def all_ready(self) -> bool:
        """Whether there are models, and each accepts requests."""
        models = self._backend.models()
        return bool(models) and all(map(self.is_ready, models))

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Return name, version, state and reason of unavailability of every model, as JSON data."""
        rows = []
        for name in self._backend.models():
            row = {"name": name, "version": VERSION, "state": "READY"}
            if name in self._unloaded:
                if ready_only:
                    continue
                row.update(state="UNAVAILABLE", reason="unloaded")
            elif not self._backend.is_ready(name):
                if ready_only:
                    continue
                row.update(state="UNAVAILABLE", reason="no worker has it, and none is expected")
            rows.append(row)
        return rows

    def load(self, name: str, parameters: Parameters) -> None:
        """Make a model usable again.

        Raises ModelNotFound, and UnsupportedFeature if another configuration or files are sent.
        """
        for key in parameters:
            if key == "config" or key.startswith("file:"):
                raise UnsupportedFeature(
                    f"parameter {shown(key)}: models are not changed from outside; "
                    "start the farm with the model that it should serve"
                )
        self._known(name)
        self._unloaded.discard(name)

    def unload(self, name: str) -> None:
        """Hide a model from KServe clients until it is loaded again. Raises ModelNotFound."""
        self._known(name)
        self._unloaded.add(name)
