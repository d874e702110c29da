"""The descriptor of farm's own HTTP interface."""

from __future__ import annotations

from farm.descriptors import Protocol

PROTOCOL = Protocol(name="points", serve="farm.protocols.points.service:serve")
