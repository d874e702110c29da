"""Functional Mock-up Units, simulation models of FMI 2 and 3, simulated by FMPy.

An FMU is a program: its library is loaded into the model process.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.declared import Shape, Tensors
from farm.errors import InvalidInput, ModelFailed
from farm.machine.private import TemporaryFolder
from farm.model import Config, Inputs, Model
from farm.wording import imported, one_line

WHOLE = frozenset({"Integer", "Enumeration"}) | {
    f"{u}Int{n}" for u in ("", "U") for n in (8, 16, 32, 64)
}
"""Types of whole numbers in FMI 2 and 3."""

NUMBERS = frozenset({"Real", "Float32", "Float64", "Boolean", *WHOLE})
"""Types that are served; texts, binaries and clocks are not."""

KEYS = ("start_time", "stop_time", "output_interval", "tolerance", "start_values")
"""The keys of a config."""

TIME = "time"
LAST_MESSAGES = 10
CLOSE = 1e-6
"""Tolerance for times, in intervals: 1/0.1 is not a whole number of intervals in binary."""


class FmuModel(Model):
    """A simulation of an FMU (co-simulation, else model exchange) from its start to its stop time.

    path: the file. inputs: names of the variables that a call sets; None: all of the causalities
    `input` and `parameter` that are single numbers. outputs: names of the variables it returns;
    None: all of the causality `output`. name: the name it is served under; None: the file's name.

    Inputs stay constant over the simulation. Keys of the config: `start_time`, `stop_time`,
    `tolerance`, by default those of the FMU; `start_values`, an object of other variables;
    `output_interval`, with which the outputs are time series and the last output is `time`. Without
    it they are the values at the stop time. Each process has one instance, which is reset between
    calls.

    Raises ValueError if the file cannot be served, ImportError without the extra `fmu`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        path = Path(path)
        self.name = path.stem if name is None else name
        self._fmpy = fmpy = imported("fmu", "FMUs need FMPy", "fmpy", "fmpy.simulation")
        self._messages: deque[str] = deque(maxlen=LAST_MESSAGES)
        self._lock = threading.Lock()
        self._instance: Any = None
        folder = TemporaryFolder(f"{path.stem}-")
        weakref.finalize(self, folder.close)
        self._folder = str(folder.path)
        try:
            platforms = fmpy.supported_platforms(path)
            self._about = about = fmpy.read_model_description(str(path))
            fmpy.extract(str(path), unzipdir=self._folder)
        except Exception as error:  # zip, XML and FMPy have their own
            raise ValueError(f"FMPy cannot open {str(path)!r}: {one_line(error)}") from error
        if fmpy.platform not in platforms:
            raise ValueError(
                f"{path.name} has libraries for {', '.join(platforms) or 'no platform'}, this is "
                f"{fmpy.platform}; export it for that, or with its source: fmpy compile {path.name}"
            )
        self._is_cosimulation = about.coSimulation is not None
        if not self._is_cosimulation and about.modelExchange is None:
            raise ValueError(
                f"{path.name} offers neither co-simulation nor model exchange; export it for one "
                "of them: farm does not schedule the parts of a unit"
            )
        self._variables = {v.name: v for v in about.modelVariables}
        self._inputs = self._named(inputs, ("input", "parameter"))
        self._outputs = self._named(outputs, ("output",))
        if not self._outputs:
            raise ValueError(
                f"{path.name} has no outputs that are single numbers; name variables: "
                f"farm.FmuModel({str(path)!r}, outputs=[...])"
            )
        self.description = about.description or f"FMU {about.modelName}, FMI {about.fmiVersion}"
        with self._lock:
            self._fresh()

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        """Return inputs of one number each; outputs of one, or of one for each point in time."""
        sizes: dict[str, Shape] = dict.fromkeys(self._outputs, 1)
        if "output_interval" in config:
            points = self._points(config, *self._times(config))
            sizes = dict.fromkeys([*self._outputs, TIME], points)
        return dict.fromkeys(self._inputs, 1), sizes

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Simulate once. Raises InvalidInput, ModelFailed."""
        _check_keys(config)
        start, stop = self._times(config)
        wanted = {name: float(value[0]) for name, value in inputs.items()}
        others = config.get("start_values", {})
        if not isinstance(others, Mapping):
            raise InvalidInput(
                f"start_values is {others!r}; expected an object of names and numbers"
            )
        values = {name: self._value(name, x) for name, x in {**others, **wanted}.items()}
        interval = config.get("output_interval")
        points = None if interval is None else self._points(config, start, stop)
        with self._lock:
            result = self._simulated(values, start, stop, config)
        if points is None:
            return {name: [result[name][-1]] for name in self._outputs}
        if len(result) != points:
            raise ModelFailed(f"the FMU has {len(result)} points in time, expected {points}")
        return {name: result[name].astype(float) for name in (*self._outputs, TIME)}

    def _simulated(
        self, values: Mapping[str, float], start: float, stop: float, config: Config
    ) -> Any:
        self._messages.clear()
        instance = self._fresh()
        self._instance = None  # until the end: one that failed or ended early is not used again
        try:
            result = self._fmpy.simulate_fmu(
                self._folder,
                validate=True,
                start_time=start,
                stop_time=stop,
                relative_tolerance=config.get("tolerance"),
                output_interval=config.get("output_interval"),
                record_events=False,
                start_values=dict(values),
                output=list(self._outputs),
                model_description=self._about,
                fmu_instance=instance,
            )
        except Exception as error:  # FMPy raises plain Exceptions, too
            raise ModelFailed(f"{one_line(error)}{self._said()}") from error
        end = float(result["time"][-1])
        if abs(end - stop) > CLOSE * max(1.0, abs(stop)):
            instance.freeInstance()
            raise ModelFailed(
                f"the FMU ended the simulation at time {end:g}, before its stop time {stop:g}"
                f"{self._said()}"
            )
        self._instance = instance
        return result

    def _fresh(self) -> Any:
        """Return the instance, reset; a new one if there is none that has ended well."""
        if self._instance is None:
            kind = "CoSimulation" if self._is_cosimulation else "ModelExchange"
            try:
                self._instance = self._fmpy.simulation.instantiate_fmu(
                    self._folder, self._about, kind, logger=self._heard
                )
            except Exception as error:
                why = f"{one_line(error)}{self._said()}"
                raise ValueError(f"the FMU gives no instance: {why}") from error
        else:
            self._instance.reset()
        return self._instance

    def _heard(self, *arguments: Any) -> None:
        """Keep a message; the last argument in FMI 2 and 3."""
        text = arguments[-1]
        self._messages.append(
            text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        )

    def _said(self) -> str:
        said = one_line(" ".join(self._messages))
        return f"; it says: {said}" if said else ""

    def _named(self, names: Sequence[str] | None, causalities: Sequence[str]) -> list[str]:
        """Return names of variables that are single numbers. Raises ValueError for others."""
        if names is None:
            return [
                name
                for causality in causalities
                for name, v in self._variables.items()
                if v.causality == causality and _is_number(v) and v.variability != "constant"
            ]
        for name in names:
            if name not in self._variables or not _is_number(self._variables[name]):
                raise ValueError(
                    f"{name!r} is no variable of one number; the FMU has "
                    f"{', '.join(n for n, v in self._variables.items() if _is_number(v))}"
                )
        return list(names)

    def _value(self, name: str, value: Any) -> Any:
        """Return a number as its variable's type."""
        variable = self._variables.get(name)
        if variable is None or not _is_number(variable):
            raise InvalidInput(f"start_values names {name!r}, which is no variable of one number")
        if isinstance(value, str) or not isinstance(value, int | float):
            raise InvalidInput(f"{name!r} is {value!r}; expected a number")
        if variable.type == "Boolean":
            if value not in (0, 1):
                raise InvalidInput(f"{name!r} is {value:g}; expected 0 or 1, as it is a Boolean")
            return bool(value)
        if variable.type in WHOLE:
            if value != math.floor(value):
                raise InvalidInput(f"{name!r} is {value:g}; expected a whole number")
            return int(value)
        return float(value)

    def _times(self, config: Config) -> tuple[float, float]:
        """Return start and stop time. Raises InvalidInput."""
        default = self._about.defaultExperiment
        start = config.get("start_time", getattr(default, "startTime", None) or 0.0)
        stop = config.get("stop_time", getattr(default, "stopTime", None))
        if stop is None:
            raise InvalidInput("the FMU has no default stop time; set stop_time in the config")
        try:
            start, stop = float(start), float(stop)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"start_time is {start!r} and stop_time {stop!r}; expected numbers"
            ) from None
        if not start < stop < math.inf:
            raise InvalidInput(f"stop_time is {stop:g}; expected a time after {start:g}")
        return start, stop

    def _points(self, config: Config, start: float, stop: float) -> int:
        interval = config["output_interval"]
        steps = (stop - start) / interval if isinstance(interval, int | float) and interval else 0.0
        if steps < 1 - CLOSE or abs(steps - round(steps)) > CLOSE * max(1.0, steps):
            raise InvalidInput(
                f"output_interval is {interval!r}; expected a number of which {stop - start:g}, "
                "the time between start and stop, is a multiple"
            )
        return round(steps) + 1


def _is_number(variable: Any) -> bool:
    sizes = (*(variable.shape or ()), *(variable.dimensions or ()))
    return variable.type in NUMBERS and not sizes and variable.name != TIME


def _check_keys(config: Config) -> None:
    for key in config:
        if key not in KEYS:
            raise InvalidInput(f"the config has {key!r}; expected one of {', '.join(KEYS)}")
