"""The figures of a report, each as the text of an SVG picture. Needs the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.drawing import BLUE, GREY, RED, new_figure, pairs_below, small_multiples, svg_of
from farm.sweep.journal import NO_WORKER, Status
from farm.sweep.known import Known
from farm.sweep.plan import Plan
from farm.sweep.summary import overheads

MOST_DOTS = 2000
"""More dots make a picture of megabytes that shows no more."""
MOST_PARAMETERS = 12
MOST_IN_PAIRS = 5
MOST_WORKERS = 60


@dataclass(frozen=True, eq=False)
class Shown:
    """What figures are made of. colour: one number per point, NaN where there is none."""

    plan: Plan
    known: Known
    colour: Array
    colour_name: str

    @property
    def done(self) -> Array:
        """Which points are done."""
        done: Array = self.known.status == Status.DONE
        return done

    @property
    def failed(self) -> Array:
        """Which points have failed in some way."""
        failed: Array = self.known.status > Status.DONE
        return failed

    @property
    def ran(self) -> Array:
        """Which points have a start and a run time."""
        ran: Array = np.isfinite(self.known.t_start) & np.isfinite(self.known.t_run)
        return ran

    def names(self, most: int) -> list[tuple[int, str, bool]]:
        """Column, name and whether its scale is logarithmic, of the first parameters."""
        parameters = list(enumerate(self.plan.parameters))[:most]
        return [
            (j, p.name, p.spread is not None and p.spread.scale == "log") for j, p in parameters
        ]


def progress(shown: Shown) -> str:
    """Points finished over time."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=2.6)
    ends = np.sort((shown.known.t_start + shown.known.t_run)[shown.ran])
    if len(ends):
        hours, unit = _times(ends - ends[0])
        axes.step(hours, np.arange(1, len(ends) + 1), where="post", color=BLUE, linewidth=1.5)
        axes.axhline(shown.plan.size, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("points finished")
    axes.set_ylim(bottom=0)
    return svg_of(figure)


def run_times(shown: Shown) -> str:
    """Run time against each parameter."""
    names = shown.names(MOST_PARAMETERS)
    figure, grid = small_multiples(len(names))
    kept = _some(shown.ran & shown.done)
    runs = shown.known.t_run[kept]
    wide = len(runs) > 0 and np.max(runs) > 50 * max(np.min(runs), 1e-9)
    for axes, (j, name, is_log) in zip(grid, names, strict=True):
        axes.plot(shown.plan.theta[kept, j], runs, ".", color=BLUE, markersize=3, alpha=0.6)
        axes.set_xlabel(name)
        axes.set_ylabel("run time (s)")
        axes.set_xscale("log" if is_log else "linear")
        axes.set_yscale("log" if wide else "linear")
        if not wide:
            axes.set_ylim(bottom=0)
    return svg_of(figure)


def failures(shown: Shown) -> str:
    """Where points fail: the share of failures along each parameter."""
    names = shown.names(MOST_PARAMETERS)
    figure, grid = small_multiples(len(names))
    finished = shown.done | shown.failed
    for axes, (j, name, is_log) in zip(grid, names, strict=True):
        values = shown.plan.theta[:, j]
        edges = _edges(values, is_log)
        all_of, _ = np.histogram(values[finished], edges)
        bad, _ = np.histogram(values[shown.failed], edges)
        share = np.divide(bad, all_of, out=np.zeros(len(bad)), where=all_of > 0)
        axes.bar(edges[:-1], share, np.diff(edges), align="edge", color=RED, edgecolor="white")
        axes.set_xlabel(name)
        axes.set_ylabel("share failed")
        axes.set_ylim(0, 1)
        axes.set_xscale("log" if is_log else "linear")
    return svg_of(figure)


def gantt(shown: Shown) -> str:
    """What each worker did when: a bar for each run, white where it had none."""
    known = shown.known
    ran = np.flatnonzero(shown.ran & (known.worker != NO_WORKER))
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


def pairs(shown: Shown) -> str:
    """Each pair of parameters, coloured by an output; failed points are crosses."""
    names = shown.names(MOST_IN_PAIRS)
    count = len(names)
    if count < 2:
        return _one_parameter(shown, names[0])
    side = min(9.0, 1.0 + 2.1 * (count - 1))
    figure, each, bar = pairs_below(count, width=side + 1.0, height=side)
    good, bad = _some(shown.done & np.isfinite(shown.colour)), _some(shown.failed)
    dots: Any = None
    for axes, column, row in each:
        (i, x_name, x_log), (j, y_name, y_log) = names[column], names[row]
        x, y = shown.plan.theta[:, i], shown.plan.theta[:, j]
        dots = axes.scatter(x[good], y[good], c=shown.colour[good], s=8, cmap="viridis")
        axes.plot(x[bad], y[bad], "x", color=RED, markersize=4)
        axes.set_xscale("log" if x_log else "linear")
        axes.set_yscale("log" if y_log else "linear")
        if row == count - 1:
            axes.set_xlabel(x_name)
        if column == 0:
            axes.set_ylabel(y_name)
    if len(good):
        bar(dots, shown.colour_name)
    return svg_of(figure)


def overhead(shown: Shown) -> str:
    """How much of a point's time was neither model nor queue."""
    figure, (axes,) = new_figure(1, 1, width=9.0, height=2.4)
    times = overheads(shown.known)
    times = times[times > 0]
    if len(times):
        low, high = float(np.min(times)), float(np.max(times))
        edges = np.geomspace(low, max(high, 1.01 * low), 50)
        axes.hist(1e3 * times, 1e3 * edges, color=BLUE)
        axes.set_xscale("log")
        median = 1e3 * float(np.median(times))
        axes.axvline(median, color=RED, linewidth=1)
        axes.set_title(f"median {median:.3g} ms", loc="left")
    axes.set_xlabel("overhead of a point (ms)")
    axes.set_ylabel("points")
    return svg_of(figure)


def _one_parameter(shown: Shown, named: tuple[int, str, bool]) -> str:
    j, name, is_log = named
    figure, (axes,) = new_figure(1, 1, width=9.0, height=3.0)
    good = _some(shown.done & np.isfinite(shown.colour))
    axes.plot(shown.plan.theta[good, j], shown.colour[good], ".", color=BLUE, markersize=4)
    for place in shown.plan.theta[_some(shown.failed), j]:
        axes.axvline(place, color=RED, linewidth=0.6, alpha=0.6)
    axes.set_xscale("log" if is_log else "linear")
    axes.set_xlabel(name)
    axes.set_ylabel(shown.colour_name)
    return svg_of(figure)


def _some(mask: Array) -> Array:
    """The indices of a mask, at most MOST_DOTS, spread evenly."""
    points = np.flatnonzero(mask)
    if len(points) > MOST_DOTS:
        points = points[np.linspace(0, len(points) - 1, MOST_DOTS).astype(int)]
    return points


def _edges(values: Array, is_log: bool) -> Array:
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
    """Bars (start, length), those closer than `gap` joined: nobody sees such a gap."""
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


def _worker_name(known: Known, worker: int) -> str:
    return known.workers[worker].name if worker < len(known.workers) else str(worker)
