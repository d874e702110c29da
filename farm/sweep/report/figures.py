"""The figures of a sweep's report. They need the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.call import Array
from farm.report.page import Html
from farm.report.plotting import BLUE, GREY, RED, new_figure, small_multiples, svg_of, thinned
from farm.report.scatter import ParameterAxis, scatter
from farm.sweep.design.category import Category
from farm.sweep.design.plan import Plan
from farm.sweep.file.journal import NO_WORKER, PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.file.summary import overheads
from farm.units import label

MOST_PARAMETERS = 12
MOST_WORKERS = 60


@dataclass(frozen=True, eq=False)
class SweepData:
    """The data of the figures. colour: one number per point, NaN where unknown."""

    plan: Plan
    known: PointColumns
    colour: Array
    colour_name: str

    @property
    def done(self) -> Array:
        """Mask of the points that are done."""
        done: Array = self.known.status == PointStatus.DONE
        return done

    @property
    def failed(self) -> Array:
        """Mask of the points that failed, were cancelled or timed out."""
        failed: Array = self.known.status > PointStatus.DONE
        return failed

    @property
    def ran(self) -> Array:
        """Mask of the points that have a start and a run time."""
        ran: Array = np.isfinite(self.known.t_start) & np.isfinite(self.known.t_run)
        return ran

    @property
    def parameters(self) -> list[ParameterAxis]:
        """The parameters, in the order of the columns of theta."""
        return [
            ParameterAxis(
                label(p.name, tensor.unit if (tensor := self.plan.tensor_of(p)) else ""),
                is_log=p.spread is not None and p.spread.scale == "log",
                choices=p.spread.words if isinstance(p.spread, Category) else (),
            )
            for p in self.plan.parameters
        ]


def progress(data: SweepData) -> Html:
    """Plot the number of finished points over time."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=2.6)
    ends = np.sort((data.known.t_start + data.known.t_run)[data.ran])
    if len(ends):
        hours, unit = _times(ends - ends[0])
        axes.step(hours, np.arange(1, len(ends) + 1), where="post", color=BLUE, linewidth=1.5)
        axes.axhline(data.plan.size, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("points finished")
    axes.set_ylim(bottom=0)
    return svg_of(figure)


def run_times(data: SweepData) -> Html:
    """Plot the run time against each parameter."""
    parameters = data.parameters[:MOST_PARAMETERS]
    figure, grid = small_multiples(len(parameters))
    kept = thinned(data.ran & data.done)
    runs = data.known.t_run[kept]
    wide = len(runs) > 0 and np.max(runs) > 50 * max(np.min(runs), 1e-9)
    for j, (axes, parameter) in enumerate(zip(grid, parameters, strict=True)):
        axes.plot(data.plan.theta[kept, j], runs, ".", color=BLUE, markersize=3, alpha=0.6)
        parameter.along_x(axes)
        axes.set_ylabel("run time (s)")
        axes.set_yscale("log" if wide else "linear")
        if not wide:
            axes.set_ylim(bottom=0)
    return svg_of(figure)


def failures(data: SweepData) -> Html:
    """Plot the share of failed points along each parameter."""
    parameters = data.parameters[:MOST_PARAMETERS]
    figure, grid = small_multiples(len(parameters))
    finished = data.done | data.failed
    for j, (axes, parameter) in enumerate(zip(grid, parameters, strict=True)):
        values = data.plan.theta[:, j]
        edges = _edges(values[np.isfinite(values)], parameter.is_log)
        all_of, _ = np.histogram(values[finished], edges)
        bad, _ = np.histogram(values[data.failed], edges)
        share = np.divide(bad, all_of, out=np.zeros(len(bad)), where=all_of > 0)
        axes.bar(edges[:-1], share, np.diff(edges), align="edge", color=RED, edgecolor="white")
        parameter.along_x(axes)
        axes.set_ylabel("share failed")
        axes.set_ylim(0, 1)
    return svg_of(figure)


def gantt(data: SweepData) -> Html:
    """Plot a bar for each run of each worker over time."""
    known = data.known
    ran = np.flatnonzero(data.ran & (known.worker != NO_WORKER))
    workers = np.unique(known.worker[ran])[:MOST_WORKERS]
    height = 1.0 + 0.22 * max(len(workers), 3)
    figure, (axes,) = new_figure(1, 1, width=9.0, height=min(height, 9.0))
    begin = float(np.min(known.t_start[ran])) if len(ran) else 0.0
    span = known.t_start[ran] + known.t_run[ran] - begin
    scale, unit = _unit(float(np.max(span)) if len(ran) else 1.0)
    for k, worker in enumerate(workers):
        points = ran[known.worker[ran] == worker]
        bars = np.stack([(known.t_start[points] - begin), known.t_run[points]], axis=1) / scale
        bars = bars[np.argsort(bars[:, 0])]
        merged = _merged(bars, float(np.max(span)) / scale / 2000) if len(points) else bars
        axes.broken_barh([tuple(bar) for bar in merged], (k - 0.4, 0.8), color=BLUE)
    axes.set_yticks(range(len(workers)), [_worker_name(known, int(w)) for w in workers])
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.set_ylim(max(len(workers), 1) - 0.5, -0.5)
    axes.set_xlabel(f"time ({unit})")
    return svg_of(figure)


def points(data: SweepData) -> Html:
    """Plot the points coloured by output, and mark those that failed."""
    theta = data.plan.theta
    shown = data.done & np.isfinite(data.colour)
    return scatter(
        data.parameters,
        theta[shown],
        data.colour[shown],
        theta[data.failed],
        label=data.colour_name,
    )


def overhead(data: SweepData) -> Html:
    """Plot a histogram of the time per point spent neither in the model nor in the queue."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=2.4)
    times = overheads(data.known)
    times = times[times > 0]
    if len(times):
        low, high = float(np.min(times)), float(np.max(times))
        edges = np.geomspace(low, max(high, 1.01 * low), 50)
        axes.hist(1e3 * times, 1e3 * edges, color=BLUE)
        axes.set_xscale("log")
        median = 1e3 * float(np.median(times))
        axes.axvline(median, color=RED, linewidth=1)
        axes.set_title(f"median {median:.3g} ms", loc="left", fontsize=9)
    axes.set_xlabel("overhead of a point (ms)")
    axes.set_ylabel("points")
    return svg_of(figure)


def _edges(values: Array, is_log: bool) -> Array:
    if not len(values):  # inactive at all points
        return np.array([0.0, 1.0])
    low, high = float(np.min(values)), float(np.max(values))
    if low == high:
        return np.array([low - 0.5, low + 0.5])
    distinct = np.unique(values)
    if len(distinct) <= 12 and not is_log:
        middles = (distinct[1:] + distinct[:-1]) / 2
        ends = [2 * distinct[0] - middles[0]], [2 * distinct[-1] - middles[-1]]
        return np.concatenate([ends[0], middles, ends[1]])
    return np.geomspace(low, high, 13) if is_log else np.linspace(low, high, 13)


def _merged(bars: Array, gap: float) -> list[Sequence[float]]:
    """Return bars (start, length), joined where the gap is below `gap`, too small to see."""
    merged: list[list[float]] = []
    for start, length in bars.tolist():
        if merged and start - sum(merged[-1]) < gap:
            merged[-1][1] = max(start + length - merged[-1][0], merged[-1][1])
        else:
            merged.append([start, length])
    return [*merged]


def _times(seconds: Array) -> tuple[Array, str]:
    scale, unit = _unit(float(seconds[-1]))
    return seconds / scale, unit


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds < 300 else (60.0, "min") if seconds < 18_000 else (3600.0, "h")


def _worker_name(known: PointColumns, worker: int) -> str:
    return known.workers[worker].name if worker < len(known.workers) else str(worker)
