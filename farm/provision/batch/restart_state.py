"""State that a farm persists so that a restarted one can re-adopt its SLURM jobs.

A server that is killed leaves jobs alive, and clients that resend their calls before any worker
returns. The next farm finds the jobs by its identity, and recognizes the calls by the models.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from farm.call import ModelInfo
from farm.machine.private import private_opener
from farm.provision.batch.kinds import WorkerKind

log = logging.getLogger(__name__)


class RestartState:
    """The identity of a run folder's farm, and the models served by its kinds of workers.

    Raises OSError if the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / "models.json"
        self.identity = _identity(folder / "identity")

    def models(self, kind: WorkerKind) -> list[ModelInfo] | None:
        """Return the models that workers of a kind served before the restart; None if unknown.

        If the files that a kind loads have changed, it counts as another kind.
        """
        known = self._read().get(kind.name)
        if not isinstance(known, dict) or known.get("loads") != list(kind.models):
            return None
        try:
            return [ModelInfo.from_json(row) for row in known["serves"]]
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be used: %s", self._path, error)
            return None

    def keep(self, kind: WorkerKind, models: Sequence[ModelInfo]) -> None:
        """Save the models that workers of a kind serve."""
        rows = [model.to_json() for model in models]
        known = {**self._read(), kind.name: {"loads": list(kind.models), "serves": rows}}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with open(temporary, "w", encoding="utf-8", opener=private_opener) as file:
                file.write(json.dumps(known, indent=1) + "\n")
            temporary.replace(self._path)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)

    def forget_models(self) -> None:
        """Forget the models; called when no job is left, because the next ones may load others."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> Mapping[str, object]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return {}
        return data if isinstance(data, dict) else {}


def _identity(path: Path) -> str:
    """Return the name of this run folder's farm in job names; created once, then kept."""
    try:
        with open(path, "x", encoding="ascii", opener=private_opener) as file:
            file.write(secrets.token_hex(4))
    except FileExistsError:
        pass
    return path.read_text(encoding="ascii").strip()
