"""The farm that is addressed: does it answer, and if not, why; and is the default port free."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path
from typing import Any

from farm.client import connect
from farm.client.client import default_target
from farm.doctor.finding import Finding, ok, warning, wrong
from farm.errors import FarmError, Unavailable
from farm.storage.lock import born
from farm.transports.connection import CLIENTS_FILE, Connection, read_connection
from farm.wording import counted

PORT = 4242
"""Default port of `farm serve`."""

SKEW_S = 5.0
"""Clocks that differ by more than this are worth a word."""


def answers(target: str | None) -> list[Finding]:
    """Ask the farm for its status, and report why it gives none. No farm at all is not a fault."""
    try:
        where = meant(target)
    except Unavailable:
        return [ok("farm", "none is named, and there is none in ./farm-run")]
    try:
        with connect(where) as client:
            state = client.status()
    except FarmError as error:
        return [_silent(where, error)]
    return [*_state(where, state)]


def batch_system(target: str | None) -> str:
    """Return the title of the batch system that the farm uses; empty without one or an answer."""
    try:
        with connect(meant(target)) as client:
            return str((client.status().get("cluster") or {}).get("system") or "")
    except FarmError:
        return ""


def port(target: str | None) -> list[Finding]:
    """Check that the default port can be listened on, unless a farm runs here already."""
    with contextlib.suppress(FarmError):
        where = meant(target)
        connection = process_here(where)
        if connection and connection.url.endswith(f":{PORT}"):
            return [ok("port", f"{PORT} is that of the farm in {where}")]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as `farm serve` does
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError as error:
            remedy = "another farm may have it; for one more: farm serve --port 0"
            return [warning("port", f"{PORT} is not free: {error.strerror}", remedy)]
    return [ok("port", f"{PORT} is free")]


def folder_of(target: str | None) -> Path:
    """Return the run folder that is meant; that of the default if the farm is named by its URL."""
    with contextlib.suppress(FarmError):
        where = meant(target)
        if not is_url(where):
            path = Path(where)
            is_file = path.suffix == ".json" and not path.is_dir()
            return path.parent if is_file else path
    return Path("farm-run")


def meant(target: str | None) -> str | Path:
    """Return the farm that is named, or the default one. Raises Unavailable if there is none."""
    return default_target() if target is None else target


def is_url(where: str | Path) -> bool:
    """Whether a farm is named by its HTTP address."""
    return re.match(r"https?://", str(where), re.IGNORECASE) is not None


def _state(where: str | Path, state: dict[str, Any]) -> list[Finding]:
    """Return what a farm's answer says about its health."""
    found = []
    workers, events = state.get("workers") or [], state.get("events") or []
    queued = sum(row.get("queued") or 0 for row in state.get("queues") or [])
    cluster = state.get("cluster") or {}
    if not workers and not cluster:
        remedy = "start some: farm worker MODEL --to FOLDER; its logs are in the run folder"
        found.append(warning("farm", f"{where} answers, but has no worker", remedy))
    if cluster.get("problem"):
        text = f"{cluster.get('system')} does not answer the farm: {cluster['problem']}"
        found.append(warning("farm", text, "look at the batch system; the farm tries again"))
    for kind in cluster.get("kinds") or []:
        if kind.get("problem"):
            text = f"jobs of kind {kind.get('name')}: {kind['problem']}"
            found.append(warning("farm", text, "correct the file of --cluster, and restart"))
    if state.get("restarts"):
        text = f"its front door crashed: {state['restarts'].get('reason', '')}"
        found.append(warning("farm", text, "look at the output of `farm serve`"))
    if events and events[-1].get("time", 0.0) > time.time() + SKEW_S:
        text = "its clock is ahead of the one here"
        found.append(warning("farm", text, "synchronise the clocks of both machines"))
    text = f"{where} answers: {counted(len(workers), 'worker')}, {counted(queued, 'queued call')}"
    return [ok("farm", text), *found]


def _silent(where: str | Path, error: FarmError) -> Finding:
    """Return why a farm gives no answer, from its connection file and the error."""
    if is_url(where):
        if "401" in error.message or "token" in error.message:
            remedy = "use the whole address that `farm url` prints on its machine"
        else:
            remedy = "is it running, and does it listen for others (farm serve --host 0.0.0.0)?"
        return wrong("farm", error.message, remedy)
    path = Path(where)
    connection = _connection(where)
    if connection is None:
        file = path / CLIENTS_FILE if path.is_dir() else path
        if file.exists():
            return wrong("farm", error.message, "correct that, or start the farm again")
        return wrong("farm", f"there is no {file}", "start one: farm serve MODEL --dir FOLDER")
    process = f"process {connection.pid} on {connection.host}"
    if process_here(where):
        text = f"{process} lives but does not answer: {error.message}"
        remedy = f"look at its output; if it hangs: kill {connection.pid}, then start it again"
        return wrong("farm", text, remedy)
    if connection.host == socket.gethostname():
        text = f"{path} has a stale connection file: {process} has ended without removing it"
        remedy = f"start it again, farm serve MODEL --dir {path}: it replaces the file"
        return wrong("farm", text, remedy)
    if connection.on_loopback():
        text = f"{process} can only be reached from {connection.host}"
        return wrong("farm", text, "start it with --host 0.0.0.0, or work on that machine")
    text = f"{process} does not answer here: {error.message}"
    remedy = f"is it running, and may this machine connect to {connection.address()}?"
    return wrong("farm", text, remedy)


def _connection(where: str | Path) -> Connection | None:
    try:
        return read_connection(where)
    except Unavailable:
        return None


def process_here(where: str | Path) -> Connection | None:
    """Return the connection of a farm that is not named by its URL, if its process lives here."""
    connection = None if is_url(where) else _connection(where)
    is_here = connection is not None and connection.host == socket.gethostname()
    return connection if connection and is_here and born(connection.pid) else None
