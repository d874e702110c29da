"""`connect`, which finds a farm or any UM-Bridge server, and the Client that it returns."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from farm.call import Call, Hints, ModelInfo, Result, canonical_config
from farm.client.failures import FailedCalls, LostWorkers, row_of
from farm.client.line import Line, as_it_is, submit
from farm.client.names import with_names
from farm.client.native_line import PATIENCE_S, NativeLine
from farm.client.remote import RemoteModel
from farm.client.reports import ProgressReports, report_of
from farm.errors import FarmError, InvalidInput, ModelNotFound, Unavailable, UnsupportedFeature
from farm.storage.lock import is_alive
from farm.transports.connection import CLIENTS_FILE, ConnectionFile, read_connection
from farm.wording import briefly

LOOK_EVERY_S = 0.25
"""Interval at which a farm that is not up yet, or has no models yet, is looked for."""

T = TypeVar("T")

RUN_FOLDER = Path("farm-run")
"""Default run folder. `default_target` returns this very object: so `connect` knows it by `is`."""

ANSWER_S = 10.0
"""Timeout for the first answer of a farm."""

GONE_S = 2.0
"""Timeout for the first answer of a farm whose process does not seem to exist."""


@briefly(FarmError)
def connect(
    target: str | Path | None = None,
    *,
    client: str = "",
    chain: str | None = None,
    priority: int = 0,
    deadline_s: float | None = None,
    token: str | None = None,
    connections: int | None = None,
    wait: float | None = None,
    record: str | Path | None = None,
    reuse: bool = False,
    version: str = "",
) -> Client:
    """Connect to the farm, or to the UM-Bridge server, at `target`.

    target: a farm's connection file or run folder, for the native protocol; or a URL such as
    `http://host:4242` or `http://user:TOKEN@host:4242` of a farm or of any UM-Bridge server.
    None: the environment variable FARM_CONNECTION, then FARM_URL, then ./farm-run.
    client: client name for fair sharing of the workers; chain: the caller within the client, such
    as one chain of a sampler (default: each call by itself, and all points of `map` together);
    priority: higher goes first; deadline_s: seconds after which the answer to a call is no longer
    needed.
    token: the token of a farm, if the URL has none; connections: most simultaneous connections to a
    URL.
    wait: patience in seconds with a farm that does not answer, counted from the last contact; the
    default is a minute. Within it, calls are asked again when the farm is back, unless the model is
    not `repeatable`. With `wait` given, the first contact waits, too, so the farm may start later.
    record: file that keeps every evaluation of this client, for farms of others; your own farm has
    `farm serve --record`. reuse: answer exact repeats from it; this needs the models' versions, or
    `version`, which stands for all of them. A pickled client records nothing elsewhere.

    Raises Unavailable if there is no answer, or if the record is in use.
    """
    if wait is not None and not wait > 0:
        raise ValueError(f"wait is {wait}; expected a number of seconds above 0")
    if (reuse or version) and record is None:
        raise ValueError("reuse and version need record, the file from which calls are answered")
    patience_s = PATIENCE_S if wait is None else wait
    hints = Hints(client, priority, deadline_s, chain=chain)
    first = Patience(wait or 0.0)
    given = first.with_(lambda: default_target() if target is None else target)
    named = given is not RUN_FOLDER
    line: Line
    if isinstance(given, str) and re.match(r"https?://", given, re.IGNORECASE):
        from farm.client.http_line import HttpLine

        line = HttpLine(
            given,
            token=token,
            connections=connections,
            patience_s=patience_s,
            first_s=first.left_s(),
        )
        try:
            names = line.names()
        except BaseException:
            line.close()
            raise
    else:
        _check_path(given)
        given = Path(given).absolute()  # a pickled client may be in another folder
        find = partial(_native_line, given, patience_s, named)
        line, names = first.with_(find, lambda _: _may_come(given, named))
    if record is not None:
        from farm.client.recorded_line import RecordedLine

        try:
            line = RecordedLine(line, Path(record), reuse=reuse, version=version)
        except BaseException:
            line.close()
            raise
    settings = {
        "client": client,
        "chain": chain,
        "priority": priority,
        "deadline_s": deadline_s,
        "token": token,
        "connections": connections,
        "wait": wait,
    }
    return Client(line, hints, (given, settings), seen=names)


def default_target() -> str | Path:
    """Return the farm that is meant if none is named. Raises Unavailable if there is none."""
    for name in ("FARM_CONNECTION", "FARM_URL"):
        value = os.environ.get(name)
        if value:
            return value
    if (RUN_FOLDER / "farm.json").exists():
        return RUN_FOLDER
    raise Unavailable(
        "no farm specified: pass a URL, a connection file or a run folder, or set "
        "FARM_CONNECTION or FARM_URL; the default farm-run/farm.json, which `farm serve` writes, "
        "does not exist here"
    )


def _check_path(target: str | Path) -> None:
    """Raise Unavailable for an address that is neither a URL nor that of a connection file."""
    address = re.match(r"(?:(\w+)://|[\w.-]+:\d+$)", str(target))
    if address is not None and isinstance(target, str) and not os.path.exists(target):
        remedy = f"such as http://{target}" if address[1] is None else f"not {address[1]}://"
        raise Unavailable(
            f"there is no connection file {target}; a URL begins with http:// or https://, {remedy}"
        )


def _native_line(path: Path, patience_s: float, named: bool) -> tuple[NativeLine, list[str]]:
    """Return a line to a farm that has answered, and the names of its models."""
    connection = read_connection(path, named=named)
    # The farm may live although its process has another id here, as in a container.
    gone = connection.host == socket.gethostname() and not is_alive(connection.pid)
    line = NativeLine(
        connection,
        file=ConnectionFile(path, named),
        patience_s=patience_s,
        answer_s=GONE_S if gone else ANSWER_S,
    )
    try:
        return line, line.names()
    except BaseException as error:
        line.close()
        if gone and isinstance(error, Unavailable):
            raise Unavailable(
                f"the farm that wrote {path} (process {connection.pid} on this host) has ended"
            ) from None
        raise


def _may_come(path: Path, named: bool) -> bool:
    """Whether a farm may start there later; not if its connection file cannot be used."""
    file = path / CLIENTS_FILE if path.is_dir() else path
    try:
        read_connection(file, named=named)
    except Unavailable:
        return not file.exists()
    return True


def _not_served(name: str | None, models: Iterable[str]) -> str:
    problem = "specify a model" if name is None else f"model {name!r} is not served here"
    return f"{problem}; the models are: {', '.join(sorted(models)) or 'none'}"


class Client:
    """A client of a farm or of a UM-Bridge server, which threads may share.

    A forked process has connections of its own, and none of the calls that are open in its parent.
    A pickled client reconnects when it is unpickled. As a context manager it closes at the end.
    """

    def __init__(
        self,
        line: Line,
        hints: Hints,
        address: tuple[str | Path, dict[str, Any]],
        *,
        seen: Iterable[str] = (),
    ) -> None:
        """Use `connect` to make clients.

        address: the target and the settings of `connect`, for pickling; seen: the models so far.
        """
        self.line = line
        self._hints = hints
        self._address = address
        self._seen = set(seen)
        self._reports = ProgressReports(line)

    @property
    def hints(self) -> Hints:
        """The hints given to `connect`, with the names of `farm.chain` or a `farm.Executor`."""
        return with_names(self._hints)

    @briefly(FarmError)
    def models(self) -> list[str]:
        """Return the names of the served models."""
        names = sorted(self.line.names())
        self._seen.update(names)
        return names

    def expect_models(self, needed: str | None = None) -> list[str]:
        """Return the names of the served models, for callers that need one; by default any.

        Raises Unavailable if that is not there yet and the farm reports what it is waiting for.
        """
        names = self.models()
        if names and (needed is None or needed in names):
            return names
        with contextlib.suppress(UnsupportedFeature):  # it is another kind of server
            awaited = self.status().get("awaited")
            names = self.models()  # workers may have joined meanwhile
            if awaited and (not names or needed not in (None, *names)):
                so_far = f"{_not_served(needed, names)}; but" if names else "no model is known yet:"
                raise Unavailable(f"{so_far} {awaited}")
        return names

    @briefly(FarmError)
    def describe(self, model: str, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Return a model's description for a config. Raises FarmError."""
        return self.line.describe(model, canonical_config(config))

    @briefly(FarmError)
    def model(self, name: str | None = None) -> RemoteModel:
        """Return a served model as a callable object; without a name, the only model.

        While the farm says that the model may come, because workers start, this waits, for `wait`
        seconds if that was given. It also waits for a model that was there before a restart of the
        farm. Raises ModelNotFound, Unavailable.
        """
        seen, here = self._seen.copy(), self._seen.copy()
        wait = self._address[1].get("wait")
        had = bool(seen) if name is None else name in seen
        patience = Patience((PATIENCE_S if had else 0.0) if wait is None else wait)

        def find() -> RemoteModel:
            nonlocal here
            try:
                here = set(self.expect_models(name))
            except Unavailable:
                if wait is not None:
                    raise
                with contextlib.suppress(ModelNotFound):
                    self.describe(name or "")  # waits as long as the farm does
                here = set(self.models())
            found = next(iter(here)) if name is None and len(here) == 1 else name
            if found is not None and found in here:
                return RemoteModel(self, found)
            raise ModelNotFound(_not_served(name, here))

        def may_come(error: FarmError) -> bool:
            return isinstance(error, Unavailable) or not here or name in seen

        return patience.with_(find, may_come)

    @briefly(FarmError)
    def submit(self, call: Call, hints: Hints | None = None) -> Future[Result]:
        """Submit a call and return a future of its result; `cancel()` cancels the call.

        hints: replace those passed to `connect`.
        """
        if not isinstance(call, Call):
            raise InvalidInput(
                f"the call is a {type(call).__name__}; expected a farm.Call; "
                "to evaluate a point: client.model(...).submit(point)"
            )
        return submit(self.line, call, hints or self.hints, as_it_is)

    @briefly(FarmError)
    def status(self) -> dict[str, Any]:
        """Return workers, queues, rates and percentiles as JSON data.

        Raises UnsupportedFeature if the server is not a farm.
        """
        return self.line.status()

    @briefly(FarmError)
    def ask(self, question: str, **arguments: str) -> Any:
        """Return the farm's answer to a question about itself, as JSON data.

        Raises UnsupportedFeature if the server is not a farm, or has no such question.
        """
        return self.line.ask(question, arguments)

    @briefly(FarmError)
    def failures(self) -> list[FailedCalls]:
        """Return the failed calls of the farm, all clients' of them, in groups by reason.

        The reason seen last comes first. Raises UnsupportedFeature if the server is not a farm.
        """
        return [row_of(FailedCalls, row) for row in self.ask("failures", detail="all")]

    @briefly(FarmError)
    def losses(self) -> list[LostWorkers]:
        """Return the workers that the farm has lost, in groups by reason, the last one first.

        Raises UnsupportedFeature if the server is not a farm.
        """
        return [row_of(LostWorkers, row) for row in self.status()["losses"]]

    @briefly(FarmError)
    def why(
        self, client: str | None = None, *, chain: str | None = None, call: str | int = ""
    ) -> dict[str, Any]:
        """Return why a call waits, as JSON data with lines of text under "why".

        call: its number in `farm status`, or the id of its request; without one, the oldest waiting
        call of `client`, or of its `chain`, counts. By default these are the names given to
        `connect`, or that of this connection; "" stands for all clients without a name. Raises
        UnsupportedFeature if the server is not a farm.
        """
        if call:
            return dict(self.ask("why", call=str(call)))
        if client is None:
            client = self.hints.client or None
            chain = self.hints.chain if chain is None else chain
        return dict(self.ask("why", **_names(client, chain)))

    @briefly(FarmError)
    def clients(self) -> list[dict[str, Any]]:
        """Return a row for each client of the farm, with its calls and its share of the workers.

        Those with the largest share come first. Raises UnsupportedFeature if it is not a farm.
        """
        return list(self.status()["clients"])

    @briefly(FarmError)
    def progress(self) -> list[dict[str, Any]]:
        """Return a row for each sweep, experiment and named chain of the farm."""
        return list(self.ask("progress"))

    @briefly(FarmError)
    def cancel_calls(self, client: str, *, chain: str | None = None) -> int:
        """Cancel the waiting calls of any client, or of one of its chains; return their number.

        Each fails with Cancelled; those that run go on. Only for the owner of the farm: over HTTP,
        the user who started it, or somebody with its token.
        """
        return int(self.ask("cancel", **_names(client, chain))["cancelled"])

    def report_progress(
        self,
        kind: str,
        name: str,
        *,
        done: int,
        failed: int,
        total: int | None = None,
        per_s: float | None = None,
        ends_in_s: float | None = None,
        state: str = "running",
        identity: str = "",
        client: str = "",
    ) -> None:
        """Let `farm status` show the progress of a sweep or experiment; returns at once.

        kind: "sweep" or "experiment"; state: any other word than "running" ends it; identity: tells
        two of one name apart. Servers that are no farm are not told.
        """
        report = report_of(
            kind,
            name,
            done=done,
            failed=failed,
            total=total,
            per_s=per_s,
            ends_in_s=ends_in_s,
            state=state,
            identity=identity,
            client=client or self._hints.client,
        )
        self._reports.put(f"{kind} {identity or name}", report)

    @briefly(FarmError)
    def log(self, worker: str, *, lines: int = 100) -> str:
        """Return the last lines that a worker printed. worker: its name, or the beginning of it.

        To follow it, ask again: `client.ask("log", worker=..., after=...)`, see docs/seeing.md.
        Raises UnsupportedFeature if its output is in no file that the farm knows.
        """
        return str(self.ask("log", worker=worker, lines=str(lines))["text"])

    @briefly(FarmError)
    def drain(self, worker: str) -> str:
        """Have a worker finish its running calls and leave; return its name. For the farm's owner.

        Its supervisor starts no other one in its place.
        """
        return str(self.ask("drain", worker=worker)["draining"])

    @briefly(FarmError)
    def restart(self, worker: str) -> str:
        """Kill a worker and start another in its place; return its name. For the farm's owner.

        The call that it runs is tried again, like that of any lost worker. Raises
        UnsupportedFeature if the worker has no supervisor of farm.
        """
        return str(self.ask("restart", worker=worker)["restarting"])

    @briefly(FarmError)
    def history(self, since: float | None = None) -> dict[str, Any]:
        """Return how the farm did over the last day: `times`, and `series` of the same length.

        since: Unix time of the first step, or minus the seconds from it to now. The series are
        workers, busy, queued, calls_per_s, failed_per_s and run_p50_s, which is None where no call
        ended. Raises UnsupportedFeature if the server is not a farm.
        """
        answer = self.ask("history", **({} if since is None else {"since": repr(float(since))}))
        return {"times": answer["times"], "series": answer["series"]}

    def close(self) -> None:
        """Release all resources; open calls fail with Cancelled."""
        self._reports.close()
        self.line.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        models = f": {', '.join(sorted(self._seen))}" if self._seen else ""
        address = re.sub(r"//[^/@]*@", "//", str(self._address[0]))  # without the token
        return f"<Client of {address}{models}>"

    def _repr_html_(self) -> str:
        """Return what a farm does now as a table; of another server, the text alone."""
        try:
            status = self.line.status()
        except FarmError:  # another server, or the farm is gone
            return f"<code>{escape(repr(self))}</code>"
        from farm.report.page import table

        columns = ("model", "operation", "queued", "in_flight", "done", "failed")
        rows = [[queue[name] for name in columns] for queue in status["queues"]]
        head = f"{self!r}, workers: {len(status['workers'])}"
        return f"<code>{escape(head)}</code>{table(columns, rows) if rows else ''}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect_again, (*self._address, bool(self._seen))


def _names(client: str | None, chain: str | None) -> dict[str, str]:
    names = {"client": client, "chain": chain}
    return {key: name for key, name in names.items() if name is not None}


def _connect_again(target: str | Path, settings: Mapping[str, Any], had_models: bool) -> Client:
    """Connect as the pickled client did; its farm was there, so wait for it and for its models."""
    again = dict(settings)
    if again["wait"] is None:
        again["wait"] = PATIENCE_S
    patience = Patience(again["wait"])
    client = connect(target, **again)
    while had_models and patience.left_s() and not client.models():
        time.sleep(LOOK_EVERY_S)
    return client


class Patience:
    """Time to wait for something that is not there yet."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the rest of the time, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def with_(
        self, find: Callable[[], T], may_come: Callable[[FarmError], bool] = lambda _: True
    ) -> T:
        """Return what `find` returns once it finds something.

        may_come: whether it helps to wait after this error of `find`. Raises the last error.
        """
        while True:
            try:
                return find()
            except (Unavailable, ModelNotFound) as error:
                if not self.left_s() or not may_come(error):
                    raise
            time.sleep(min(LOOK_EVERY_S, self.left_s()))
