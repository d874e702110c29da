"""The script of a job of workers, from a template that a site may edit."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from farm.machine.programs import tail_of
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.systems import BatchSystem
from farm.settings import SettingsError

DEFAULT_TEMPLATE = Path(__file__).with_name("worker.sh.in")
PLACEHOLDER = re.compile(r"@([a-z]+)@")


@dataclass(frozen=True, slots=True)
class JobScripts:
    """Writes the scripts of the jobs of one farm.

    connect: the connection file; output: folder for the jobs' output; folder: their working
    directory, by default this process's.
    """

    system: BatchSystem
    connect: Path
    output: Path
    folder: Path = field(default_factory=Path)

    def of(self, kind: WorkerKind, job_name: str) -> str:
        """Return the script of a job. All values are quoted; paths are made absolute.

        Raises SettingsError if the template cannot be read or has an unknown word between @ signs.
        """
        template = Path(kind.template) if kind.template else DEFAULT_TEMPLATE
        try:
            text = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"template {template} cannot be read: {error}") from None
        adapter = self.system.load()
        output, folder = self.output.absolute(), self.folder.absolute()
        directives = adapter.directives(kind, job_name, output, folder)
        preamble = adapter.preamble(kind)
        limit_s = None if self.system.warns else kind.time_limit_s
        if limit_s is not None:
            preamble = [f"export FARM_ENDS_AT=$(($(date +%s) + {limit_s:.0f}))", *preamble]
        values = {
            "directives": "\n".join(directives),
            "preamble": "\n".join(preamble),
            "setup": "\n".join(kind.setup),
            "launch": adapter.launch(kind),
            "farm": _farm(kind, self.system, self.connect.absolute()),
            "kind": shlex.quote(kind.name),
        }
        for own, word in self.system.words.template.items():
            values[own] = values[word].removeprefix(f"{own} ")
        code = "\n".join(line for line in text.splitlines() if not line.startswith("# "))
        unknown = set(PLACEHOLDER.findall(code)) - set(values)
        if unknown:
            raise SettingsError(
                f"template {template} has @{unknown.pop()}@; expected: "
                + ", ".join(f"@{name}@" for name in values)
            )
        needed = {"directives": values["directives"], "farm": values["farm"]}
        if "FARM_" in values["preamble"]:
            needed["preamble"] = values["preamble"]
        written = {values[word] for word in PLACEHOLDER.findall(code)}
        for name, value in needed.items():
            if value not in written:
                raise SettingsError(f"template {template} lacks @{name}@")
        lines = [
            line if line.startswith("# ") else PLACEHOLDER.sub(lambda m: values[m[1]], line)
            for line in text.splitlines()
        ]
        return "\n".join(lines) + "\n"


def _farm(kind: WorkerKind, system: BatchSystem, connect: Path) -> str:
    """Return farm's program and its arguments as shell words."""
    # -P: keep a user's file with the name of one of farm's modules from replacing it.
    words = [sys.executable, "-P", "-m", "farm", "worker", "--to", str(connect)]
    if kind.ranks:
        words += ["--mpi", str(kind.ranks)]
        if not system.starts_ranks:
            words += ["-n", str(kind.workers)]
            words += ["--mpi-launch", kind.mpi_launch] * bool(kind.mpi_launch)
    else:
        words += ["-n", str(kind.workers), "--cpus", str(kind.cpus)]
        words += ["--gpus", "auto"] * bool(kind.gpus)
    if kind.call_limit_s is not None:
        words += ["--time-limit", f"{kind.call_limit_s:g}"]
    end = ""
    if not system.warns and kind.time_limit_s is not None:
        # An option, because not every launcher passes variables on.
        end = f' --ends-at "$FARM_ENDS_AT" --drain-before {kind.warning_s}'
    return f"{shlex.join(words)}{end} -- {shlex.join(kind.models)}"


def last_words(path: Path) -> str:
    """Return the last output of a job: farm's error line if there is one, or the last lines."""
    try:
        lines = tail_of(path).splitlines()
    except OSError:
        return f"; {path} cannot be read"
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("farm: error: ")]
    said = " / ".join(errors[-1:] or lines[-2:])
    return f"; {path} ends: {said[-400:]}" if said else f"; {path} is empty"
