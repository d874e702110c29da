"""The descriptor of AEPsych's protocol, with its options for `farm serve`."""

from __future__ import annotations

from pathlib import Path

from farm.descriptors import Option, Protocol

PROTOCOL = Protocol(
    name="aepsych",
    serve="farm.experiment.server:serve",
    options=(
        Option(
            "aepsych",
            metavar="HOST:PORT",
            help="Serve experiments to AEPsych's clients; port 0 picks a free one.",
        ),
        Option(
            "journal",
            metavar="FILE",
            help="File that keeps these experiments.  [default: experiments.db in the run folder]",
            kind=Path,
        ),
    ),
    check="farm.protocols.aepsych.service:read_options",
)
