"""The models that KServe clients may use: one record for HTTP and gRPC.

Unloading hides a model from KServe clients only, for the life of the farm: its workers keep it, and
other protocols still serve it. Source: Triton's model repository extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from farm.call import ModelInfo
from farm.dispatcher.first_worker import FirstWorker
from farm.encoding.tensors import shown
from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.protocols.kserve.dialect import OPEN, OpenDialect
from farm.protocols.kserve.metadata import model_config, model_metadata
from farm.protocols.kserve.request import NO_PARAMETERS, Parameters
from farm.versions import ANY, Numbered, Versions, as_asked, numbered

UNLOAD_DEPENDENTS = "unload_dependents"
"""A parameter of `unload`; it changes nothing, since no model here depends on another."""

NOT_POLLED = ", failed to poll from model repository"
"""Triton's words when it finds no model, or cannot store one."""


class Serves(Protocol):
    """Reports the models that are served."""

    @property
    def first_worker(self) -> FirstWorker:
        """The wait for the first models."""

    def models(self) -> Mapping[str, ModelInfo]:
        """Return the models by name, described for the empty config."""

    def is_ready(self, model: str) -> bool:
        """Whether a model has a worker, or may get one."""


class Repository:
    """The models of a farm, except those that a client has unloaded.

    dialect: of its errors. reuses: whether the farm answers from its record.
    """

    def __init__(
        self, backend: Serves, dialect: OpenDialect = OPEN, *, reuses: bool = False
    ) -> None:
        self._backend = backend
        self.dialect = dialect
        self._reuses = reuses
        self._unloaded: set[str] = set()
        self._versions = Versions(())
        self._counted = 0
        self._found: dict[tuple[str, str], str] = {}  # what `model` found since the last change

    def _all(self) -> Versions:
        models = self._backend.models()
        if len(models) != self._counted:  # a farm never forgets a model
            self._versions, self._counted = Versions(models), len(models)
            self._found.clear()
        return self._versions

    # Questions

    def names(self) -> list[str]:
        """Return the names of the loaded models, each once for all its versions."""
        models = self._backend.models()
        loaded = [name for name in models if name not in self._unloaded]
        return list(dict.fromkeys(numbered(name, models).name for name in loaded))

    def numbered(self, name: str = "", version: str = "") -> list[Numbered]:
        """Return the loaded versions of a model, or of all, or one version.

        Raises ModelNotFound, or Unavailable while it may yet come.
        """
        models = self._backend.models()
        if not name:
            return [numbered(model, models) for model in models if model not in self._unloaded]
        served_as = self.model(name, version).name
        if version not in ANY:
            return [as_asked(name, served_as)]
        every = self._all().of(name).values()
        return [as_asked(name, one) for one in every if one not in self._unloaded]

    def versions(self, name: str) -> list[str]:
        """Return the loaded versions of a model, in order."""
        found = self._all().of(name)
        return [version for version, one in found.items() if one not in self._unloaded]

    def model(self, name: str, version: str = "") -> ModelInfo:
        """Return a loaded model; version "": the greatest.

        Raises ModelNotFound, or Unavailable while it may yet come, and InvalidInput for a model or
        version that the dialect counts as a wrong argument.
        """
        models = self._backend.models()
        if len(models) == self._counted and (name, version) in self._found:
            return models[self._found[name, version]]  # the usual case
        served_as = self._all().served_as(name, version, self._unloaded)
        if served_as is None:
            every = self._known(name)
            version = self.dialect.version_of(version)
            served_as = every.get(version)
            if served_as is None:
                raise self.dialect.unknown_version(name, version, list(every))
        elif served_as not in self._unloaded:
            self._found[name, version] = served_as
        if served_as in self._unloaded:
            raise self.dialect.unloaded_model(name)
        return models[served_as]

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return a model's metadata. Raises as `model` and `model_metadata`."""
        return model_metadata(self.model(name, version), name, self.versions(name))

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return a model's configuration. Raises as `model` and `model_config`."""
        return model_config(self.model(name, version), name, reuses=self._reuses)

    def _known(self, name: str) -> Mapping[str, str]:
        """Return the whole names of a model's versions. Raises as `model`."""
        every = self._all().of(name)
        if every:
            return every
        models = self._backend.models()
        if not models:
            raise self._backend.first_worker.no_model()
        raise self.dialect.unknown_model(name, models, self._backend.first_worker.unknown)

    def knows(self, name: str) -> bool:
        """Whether a model is served under this name, loaded or not."""
        return bool(self._all().of(name))

    async def known(self, name: str) -> None:
        """Return once a model is known under this name, or none is expected any more."""
        await self._backend.first_worker.known(name, lambda: self.knows(name))

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a model accepts requests."""
        served_as = self._all().served_as(name, version, self._unloaded)
        return served_as is not None and self._is_ready(served_as)

    def _is_ready(self, served_as: str) -> bool:
        return served_as not in self._unloaded and self._backend.is_ready(served_as)

    def all_ready(self) -> bool:
        """Whether there are models, and each accepts requests."""
        models = self._backend.models()
        return bool(models) and all(map(self._is_ready, models))

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Return name, version, state and reason of unavailability of every model, as JSON data."""
        rows = []
        models = self._backend.models()
        for served_as in models:
            name, version, _ = numbered(served_as, models)
            row = {"name": name, "version": version, "state": "READY", "reason": ""}
            if not self._is_ready(served_as):
                if ready_only:
                    continue
                unloaded = served_as in self._unloaded
                reason = "unloaded" if unloaded else "no worker has it, and none is expected"
                row.update(state="UNAVAILABLE", reason=reason)
            rows.append(row)
        return rows

    # Changes

    def load(self, name: str, parameters: Parameters) -> None:
        """Make a model usable again, with all its versions.

        Raises ModelNotFound, and UnsupportedFeature if another configuration or files are sent.
        """
        for key in parameters:
            if key == "config" or key.startswith("file:"):
                config = key == "config"
                raise UnsupportedFeature(
                    f"failed to load {shown(name)}{'' if config else NOT_POLLED}: parameter "
                    f"{shown(key)} holds {'another configuration' if config else 'a file'}, but "
                    "models are not changed from outside; start the farm with the model that it "
                    "should serve"
                )
        self._found.clear()
        self._unloaded.difference_update(self._to_change(name, "load").values())

    def unload(self, name: str, parameters: Parameters = NO_PARAMETERS) -> None:
        """Hide a model from KServe clients until it is loaded again, with all its versions.

        Raises ModelNotFound, InvalidInput.
        """
        dependents = parameters.get(UNLOAD_DEPENDENTS, False)
        if type(dependents) is not bool:
            raise InvalidInput(
                f"parameter {UNLOAD_DEPENDENTS} is {shown(dependents)}; expected true or false"
            )
        self._found.clear()
        self._unloaded.update(self._to_change(name, "unload").values())

    def _to_change(self, name: str, verb: str) -> Mapping[str, str]:
        try:
            return self._known(name)
        except FarmError as error:
            poll = NOT_POLLED if verb == "load" else ""
            message = f"failed to {verb} {shown(name)}{poll}: {error.message}"
            raise type(error)(message) from None
