"""`farm status`: print the state of a farm as tables or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from farm.cli.failures import summary
from farm.cli.options import json_option, print_json, target_argument
from farm.cli.status_history import event_lines, since, time_span
from farm.cli.tables import Columns, printable, rows_table, short_name, text_table
from farm.cli.worker_table import worker_tables
from farm.client import Client, connect
from farm.wording import counted, have_joined, timespan

EXAMPLES = """\b
Examples:
  farm status                  the farm of ./farm-run
  farm status farm-4711        the farm of another run folder
  farm status --watch          refresh each second
  farm status --why sampler    why the calls of this client wait
  farm status --why 17         why call 17 waits
  farm status --why abc-123    why the call with the header X-Request-ID: abc-123 waits
  farm status --since 3h       what happened in the last three hours
  farm status --to http://node3:4242 --json | jq .queues
"""

JOBS_SHOWN = 4
CHAINS_SHOWN = CLIENTS_SHOWN = PROGRESS_SHOWN = 20

Row = Mapping[str, Any]

OPERATION: Columns = {"model": "model", "operation": "operation"}
COUNTS: Columns = {
    "?>queued": "queued",
    ">running": "in_flight",
    ">done": "done",
    "?>failed": "failed",
}
SPEED: Columns = {
    ">calls/s": lambda row: f"{row['calls_per_s']:.3g}",
    ">share": lambda row: f"{row['share']:.1%}",
}


@click.command(epilog=EXAMPLES)
@target_argument
@json_option("Print all details as one JSON object.")
@click.option("--watch", is_flag=True, help="Refresh each second until Ctrl-C.")
@click.option(
    "--why",
    "of",
    metavar="CALL|CLIENT",
    help="Explain why a call waits, by its number or the id of its request, or the oldest waiting "
    "call of a client.",
)
@click.option("--chain", metavar="NAME", help="With --why: the chain of the client.")
@click.option(
    "--since",
    "since_s",
    type=time_span,
    metavar="SPAN",
    help="Show what happened in this time, such as 10m, 3h or 1d: numbers, failures, events.",
)
def status(
    target: str | None,
    as_json: bool,
    watch: bool,
    of: str | None,
    chain: str | None,
    since_s: float | None,
) -> None:
    """Show the clients, progress, workers, queues and rates of a farm, or why a call waits."""
    if since_s is not None and (watch or of is not None):
        raise click.UsageError("--since excludes --watch and --why")
    if of is None and chain is not None:
        raise click.UsageError("--chain needs --why CLIENT")
    if of is not None and watch:
        raise click.UsageError("--why and --watch exclude one another")
    with connect(target) as client:
        if as_json:
            print_json(_answer(client, of, chain, since_s))
            return
        if of is not None:
            click.echo(lines(why(client, of, chain)))
            return
        if since_s is not None:
            Console().print(since(client, since_s))
            return
        console = Console()
        if not watch:
            console.print(tables(client.status()))
            return
        with Live(console=console, screen=False, auto_refresh=False) as live:
            while True:
                live.update(tables(client.status()), refresh=True)
                time.sleep(1.0)


def _answer(client: Client, of: str | None, chain: str | None, since_s: float | None) -> Any:
    """Return what the options ask for, as JSON data."""
    if of is not None:
        return why(client, of, chain)
    return client.status() if since_s is None else client.history(since=-since_s)


def tables(state: dict[str, Any]) -> RenderableType:
    """Return a snapshot of the dispatcher as tables for a console."""
    workers = counted(len(state["workers"]), "worker")
    head = (
        f"[b]{workers}[/b], [b]{state['calls_per_s']:.4g}[/b] calls/s, "
        f"{state['done']} done, {state['failed']} failed, up {timespan(state['up_s'])}"
    )
    parts: list[RenderableType] = [head, _queues(state["queues"])]
    if failed := summary(state.get("failures", ()), state.get("losses", ())):
        parts.insert(1, f"{failed}: see farm failures")
    if late := state.get("expected"):
        parts.insert(1, f"[red]{have_joined(late['workers'], late['joined'])}[/]")
    if state.get("descriptions"):
        parts.append(_models(state["descriptions"]))
    parts += worker_tables(state["workers"])
    if state.get("restarts"):
        parts.insert(1, _restarts(state["restarts"]))
    for name, show in SHOWN.items():
        if state.get(name):
            shown = show(state[name])
            parts += shown if isinstance(shown, list) else [shown]
    parts.extend(
        f"{title}: " + ", ".join(f"{q} {timespan(value[q])}" for q in ("p50", "p95", "p99"))
        for title, value in (
            ("overhead of a call to an idle worker", state["overhead_s"]),
            ("idle gap of a worker while work waits", state["idle_gap_s"]),
        )
        if value is not None
    )
    return Group(*parts, *event_lines(state["events"]))


def _restarts(restarts: dict[str, Any]) -> str:
    """A line about a front door that its keeper has started again."""
    at = time.strftime("%F %T", time.localtime(restarts["time"]))
    count = counted(restarts["count"], "restart")
    return escape(f"front door was started again at {at} (it {restarts['reason']}), {count}")


def _record(record: dict[str, Any]) -> str:
    """A line about the record: its size, the calls answered from it, and why it stopped."""
    line = f"record {escape(record['file'])}: {counted(record['points'], 'evaluation')}"
    if record["reuse"]:
        names = ", ".join(name for name, model in record["models"].items() if model["reused"])
        calls = counted(record["answered"], "call")
        line += f", {calls} answered without a run; reused: {names or 'none'}"
    if record["trouble"]:
        line += f"; [b]nothing more is recorded: {escape(record['trouble'])}[/b]"
    return line


def _queues(rows: Sequence[Row]) -> Table:
    times: Columns = {
        ">p50": lambda row: timespan(row["run_time_p50_s"]) if row["run_time_p50_s"] else "",
        ">p95": lambda row: timespan(row["run_time_p95_s"]) if row["run_time_p95_s"] else "",
    }
    return rows_table(OPERATION | COUNTS | {"?>copies": "copies"} | times, rows)


def _models(rows: Sequence[Row]) -> Table:
    """Return a table of the models with what they take and return."""
    columns: Columns = {
        "model": "name",
        "inputs": lambda row: ", ".join(map(_tensor, row["inputs"])),
        "outputs": lambda row: (
            ", ".join(map(_tensor, row["outputs"]))
            + (f", and {row['left_out']} more" if row["left_out"] else "")
        ),
    }
    return rows_table(columns, rows)


def _tensor(tensor: dict[str, Any]) -> str:
    size = " x ".join("any" if n < 0 else str(n) for n in tensor["shape"])
    shape = f"[{size}]" if size else ""  # a scalar has none
    text = " ".join(filter(None, (tensor["name"], shape, tensor.get("unit"))))
    return f"{text} ({tensor['description']})" if tensor.get("description") else text


def _dask(rows: Sequence[Row]) -> Table:
    """A table of the workers of a Dask cluster, which is one worker to farm."""
    name: Columns = {"Dask worker": lambda row: row["name"] or row["address"], "host": "host"}
    counts: Columns = {">threads": "threads", ">slots": "slots", ">running": "in_flight"}
    return rows_table(name | counts | {">done": "done", "state": "state"}, rows)


def _first(columns: Columns, rows: Sequence[Row], most: int, what: str) -> list[RenderableType]:
    """Return a table of the first rows, and a line about those that are left out."""
    table, more = rows_table(columns, rows[:most]), len(rows) - most
    return [table, f"and {more} more {what}; --json lists them"] if more > 0 else [table]


def _chains(rows: Sequence[Row]) -> list[RenderableType]:
    """A table of the chains that called last: their calls, rate and part of the worker time."""
    names: Columns = {
        "client": lambda row: short_name(row["client"]) or "(no name)",
        "chain": lambda row: short_name("(bulk)" if row["chain"] == "" else row["chain"] or ""),
    }
    last: Columns = {">last": lambda row: _since(row["last_answer_s"])}
    return _first(names | COUNTS | SPEED | last, rows, CHAINS_SHOWN, "chains")


def _waits(rows: Sequence[Row]) -> Table:
    """A table of the clients whose calls wait longest, with the rules that put others first."""
    name: Columns = {"waiting client": lambda row: short_name(row["client"]) or "(no name)"}
    more: Columns = {
        ">calls": "calls",
        ">for": lambda row: timespan(row["age_s"]),
        "why": lambda row: "; ".join(reason["text"] for reason in row["why"]),
    }
    return rows_table(name | OPERATION | more, rows)


def _calls(rows: list[dict[str, Any]]) -> Table:
    """A table of the calls that lost a worker and the oldest calls, with their history."""
    table = Table("call", "oldest calls", "operation", "age", "what happened", box=None)
    table.header_style = "dim"
    for row in rows:
        story = escape(", ".join(row["story"]))
        name = row.get("call", "")
        table.add_row(name, escape(row["model"]), row["operation"], timespan(row["age_s"]), story)
    return table


def _experiments(rows: Sequence[Row]) -> Table:
    columns: Columns = {
        "experiment": lambda row: f"{row['number']} {row['name']}".rstrip(),
        "strategy": "strategy_name",
        **{f">{key}": key for key in ("asked", "told", "failed", "pending")},
        "state": lambda row: row["run"] or ("finished" if row["finished"] else "open"),
    }
    return rows_table(columns, rows)


def _cluster(state: dict[str, Any]) -> list[RenderableType]:
    """Tables of a batch system's jobs: the numbers of each kind, their states, and problems."""
    kind: Columns = {
        f"{state['system']} jobs of": "name",
        "models": lambda row: ", ".join(row["models"]),
        **{f">{key}": key for key in ("wanted", "pending", "running")},
        ">most": "max_jobs",
        ">workers": "workers",
    }
    kinds = rows_table(kind, state["kinds"])
    problems: list[RenderableType] = []
    if state["problem"]:
        problems.append(f"[red]{state['system']} does not answer: {escape(state['problem'])}[/]")
    for row in state["kinds"]:
        if row["problem"]:
            text = f"{row['name']}: {row['problem']}"
            if row["next_try_in_s"] is not None:
                text += f"; next try in {row['next_try_in_s']:.0f} s"
            problems.append(f"[red]{escape(text)}[/]")
    now = time.time()
    alike: dict[tuple[str, ...], list[str]] = {}
    for job in state["jobs"]:
        reason = job["reason"] if job["phase"] == "pending" else job["nodes"]
        if (starts_at := job.get("starts_at")) is not None and starts_at > now:
            reason += time.strftime(", expected %Y-%m-%d %H:%M", time.localtime(starts_at))
        key: tuple[str, ...] = (job["kind"], job["phase"], job["state"] or "submitted", reason)
        alike.setdefault(key, []).append(job["id"])
    rows = []
    for words, ids in alike.items():
        more = f" and {len(ids) - JOBS_SHOWN} more" if len(ids) > JOBS_SHOWN else ""
        rows.append([*words, ", ".join(ids[:JOBS_SHOWN]) + more])
    jobs = text_table(("kind", "phase", f"{state['system']} says", "reason or nodes", "jobs"), rows)
    return [kinds, *([jobs] if alike else []), *problems]


BAR = 20
"""Characters of a bar; in a narrow terminal it has fewer, `SHORTEST_BAR` at least."""

SHORTEST_BAR = 4
PART = " 100%"


def clients(rows: Sequence[Row]) -> list[RenderableType]:
    """A table of the clients with the largest shares of the workers."""
    name: Columns = {"client": lambda row: short_name(_client(row)), ">callers": "callers"}
    last: Columns = {">last": lambda row: _since(row["last_s"])}
    columns = name | COUNTS | {">running": "running"} | SPEED | last
    return _first(columns, rows, CLIENTS_SHOWN, "clients")


def _client(row: Row) -> str:
    if row["others"]:
        return f"{row['others']} others"
    return row["client"] or "(no name)"


def progress(rows: Sequence[Row]) -> Table:
    """A table of sweeps, experiments and chains, with bars and expected ends."""
    columns: Columns = {
        "progress of": "kind",
        "name": lambda row: short_name(row["name"]),
        "client": lambda row: short_name(row["client"]),
        "": bar,
        ">done": lambda row: (
            row["done"] if row["total"] is None else f"{row['done']}/{row['total']}"
        ),
        "?>failed": "failed",
        ">calls/s": SPEED[">calls/s"],
        "ends": _end,
    }
    return rows_table(columns, rows[:PROGRESS_SHOWN])


class Bar:
    """A bar for the part that has an outcome, as wide as there is room, with its percentage."""

    def __init__(self, finished: float) -> None:
        self._finished = finished

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(SHORTEST_BAR + len(PART), BAR + len(PART))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(0, min(BAR, options.max_width - len(PART)))
        full = int(width * self._finished)
        yield Text("█" * full + "░" * (width - full) + f" {self._finished:4.0%}", no_wrap=True)


def bar(row: Row) -> Bar | str:
    """Return a bar for the part that has an outcome; empty if the total is not known."""
    if not row["total"]:
        return ""
    return Bar(min(1.0, (row["done"] + row["failed"]) / row["total"]))


def _since(seconds: float | None) -> str:
    return "" if seconds is None else timespan(seconds)


def _end(row: Row) -> str:
    if row["state"] != "running":
        return str(row["state"])
    return "" if row["ends_in_s"] is None else f"in about {timespan(row['ends_in_s'])}"


def why(client: Client, of: str, chain: str | None) -> dict[str, Any]:
    """Return why a call or a client waits. of: number or id of the call, or the client's name."""
    if chain is None:
        return dict(client.ask("why", of=of))
    return client.why(of, chain=chain)


def lines(found: dict[str, Any]) -> str:
    """Return the lines of an answer to `why`, safe for a terminal."""
    first, *others = [printable(line) for line in found["why"]]
    return "\n".join([first, *(f"  {line}" for line in others)])


SHOWN: dict[str, Callable[[Any], RenderableType | list[RenderableType]]] = {
    "dask": _dask,
    "progress": progress,
    "clients": clients,
    "chains": _chains,
    "waits": _waits,
    "calls": _calls,
    "record": _record,
    "cluster": _cluster,
    "experiments": _experiments,
}
"""Parts of a snapshot that not every farm has, in the order in which they are shown."""
