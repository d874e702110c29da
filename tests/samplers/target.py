"""The densities that the samplers' tests sample, with their moments in closed form.

`MODELS` is a model file; each evaluation appends a line to `calls.log` beside it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.client import Client

Array = NDArray[np.float64]

MEAN = np.array([1.0, -0.5])
COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
"""Moments of `posterior`, a normal density."""
MATRIX = np.array([[1.0, 0.5], [0.0, 2.0], [1.0, -1.0]])
DATA = np.array([1.0, -1.0, 2.0])
NOISE_SD = 0.5
"""`forward` gives MATRIX @ theta; DATA are its outputs with noise of this standard deviation."""

MODELS = f"""
import os
import time
from pathlib import Path

import numpy as np

import farm

LOG = os.open(Path(__file__).with_name("calls.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
MEAN = np.array({MEAN.tolist()})
COVARIANCE = np.array({COVARIANCE.tolist()})
PRECISION = np.linalg.inv(COVARIANCE)
OFFSET = -0.5 * np.linalg.slogdet(2.0 * np.pi * COVARIANCE)[1]
MATRIX = np.array({MATRIX.tolist()})


def log(model, operation, theta, config):
    numbers = " ".join(float(x).hex() for x in theta)
    os.write(LOG, f"{{model}} {{operation}} {{config.get('level', 0)}} {{numbers}}\\n".encode())
    time.sleep(config.get("sleep_s", 0.0))


class Posterior(farm.Model):
    # The log of a normal density; config: sleep_s
    name = "posterior"
    inputs = {{"theta": 2}}
    outputs = {{"log_density": 1}}
    keeps_point = True

    def evaluate(self, inputs, config):
        theta = inputs["theta"]
        log(self.name, "evaluate", theta, config)
        away = theta - MEAN
        return [OFFSET - 0.5 * away @ PRECISION @ away]

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        theta = inputs["theta"]
        log(self.name, "gradient", theta, config)
        return -sens[0] * (PRECISION @ (theta - MEAN))


class Forward(farm.Model):
    # A linear model; level 1 of its config is coarser, with a bias; config: level, sleep_s
    name = "forward"
    inputs = {{"theta": 2}}
    outputs = {{"y": 3}}

    def evaluate(self, inputs, config):
        theta = inputs["theta"]
        log(self.name, "evaluate", theta, config)
        return MATRIX @ theta * (1.0 - 0.1 * config.get("level", 0))

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        log(self.name, "gradient", inputs["theta"], config)
        return MATRIX.T @ sens * (1.0 - 0.1 * config.get("level", 0))
"""


def linear_posterior(prior_sd: float) -> tuple[Array, Array]:
    """Mean and covariance of theta given DATA, under a normal prior around zero."""
    precision = MATRIX.T @ MATRIX / NOISE_SD**2 + np.eye(2) / prior_sd**2
    covariance = np.linalg.inv(precision)
    return covariance @ MATRIX.T @ DATA / NOISE_SD**2, covariance


def assert_moments(draws: Any, effective: float, mean: Array, covariance: Array) -> None:
    """Check mean and variances of draws, shape (draws, dimensions), to five standard errors.

    effective: the number of independent draws that they are worth.
    """
    draws = np.asarray(draws, float).reshape(-1, len(mean))
    sd = np.sqrt(np.diag(covariance))
    allowed = 5.0 / np.sqrt(effective)
    assert np.abs((draws.mean(axis=0) - mean) / sd).max() < allowed
    # A variance of n normal draws varies by sqrt(2 / n) of itself.
    assert np.abs(draws.var(axis=0) / sd**2 - 1.0).max() < allowed * np.sqrt(2.0)


@dataclass(frozen=True)
class Served:
    """A running farm of `workers` workers with the models `posterior` and `forward`."""

    folder: Path
    """Its run folder, a target of `farm.connect`."""
    url: str
    client: Client
    workers: int
    log: Path


@dataclass
class Calls:
    """The evaluations that the models made since this object was made."""

    log: Path
    begun: int = field(init=False)

    def __post_init__(self) -> None:
        self.begun = os.path.getsize(self.log) if self.log.exists() else 0

    def lines(self, model: str = "posterior", operation: str = "evaluate") -> list[str]:
        """One line a call: model, operation, level, and theta as hexadecimal numbers."""
        with open(self.log, "rb") as file:
            file.seek(self.begun)
            lines = file.read().decode().splitlines()
        return [line for line in lines if line.startswith(f"{model} {operation} ")]

    def count(self, model: str = "posterior", operation: str = "evaluate") -> int:
        return len(self.lines(model, operation))

    def repeats(self, model: str = "posterior", operation: str = "evaluate") -> int:
        """The number of calls whose point an earlier call had."""
        lines = self.lines(model, operation)
        return len(lines) - len(set(lines))
