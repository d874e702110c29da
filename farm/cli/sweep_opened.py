"""A sweep that a command opened to continue, and the farm that it continues on."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli.sweep_farm import Target, kept_target
from farm.client import Client
from farm.sweep.design.plan import Plan
from farm.sweep.design.prepare import check_model
from farm.sweep.file.store import Store

trust_option = click.option(
    "--trust", is_flag=True, help="Run the model that FILE names even if you did not write FILE."
)


class OpenedSweep:
    """An open sweep. `close` leaves it unchanged unless a session took it over and closes it."""

    def __init__(self, path: Path) -> None:
        self.store = Store.resume(path)
        self._ours = True

    def handed_over(self, client: Client) -> Store:
        """Return the store; the caller must close it. Raises SweepError if the model differs."""
        plan = self.store.plan
        check_model(plan, client.describe(plan.info.name, plan.config_of(0)))
        self._ours = False
        return self.store

    def close(self) -> None:
        """Leave the store unchanged, unless it was handed over."""
        if self._ours:
            self.store.leave()


def chosen_farm(target: Target, plan: Plan, path: Path, *, trust: bool) -> Target:
    """Return the farm that the command line names, or the one that the file names."""
    if target.models or target.to:
        return target
    return kept_target(plan.provenance, path, trust=trust)
