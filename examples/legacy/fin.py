"""FIN-77, which reads card decks and prints listings, as a model."""

from __future__ import annotations

from pathlib import Path

from farm.worker.command import CommandModel
from farm.worker.readers import regex

fin = CommandModel(
    "awk -f {here}/fin77.awk {input}",
    directory=Path(__file__).parent,
    template=Path("fin.deck"),
    inputs={
        "conductivity": 1,  # of the metal, W / (m K)
        "film": 1,  # heat transfer coefficient to the air, W / (m^2 K)
        "base": 2,  # temperatures of base and air, K
    },
    outputs={"heat_flow": 1, "tip": 1},  # W; K
    read={
        "heat_flow": regex(r"^0HEAT FLOW AT BASE \(W\) = *(\S+)"),
        "tip": regex(r"(\S+)\n0HEAT FLOW"),
    },
    config={"nodes": 81},
    timeout_s=10.0,
    keep="never",  # delete scratch folders; "failed" keeps those of failed calls
    name="fin",
)
