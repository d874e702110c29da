"""The addresses of the farm under attack, for the cases of hostile.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A farm with the models `innocent`, `single` (one number each) and `echo` (any length).

    mip_port serves `single`. token: for requests that should get past the front door.
    seconds: how long a case attacks; the case function is called repeatedly for that time, so one
    call should take about a second at most, or check the time itself.
    """

    host: str
    http_port: int
    grpc_port: int
    mip_port: int
    aepsych_port: int
    token: str
    connection_file: Path
    seconds: float

    @property
    def http(self) -> tuple[str, int]:
        """The address of the HTTP port."""
        return self.host, self.http_port

    @property
    def grpc(self) -> tuple[str, int]:
        """The address of the gRPC port."""
        return self.host, self.grpc_port

    @property
    def mip(self) -> tuple[str, int]:
        """The address of the MIP port."""
        return self.host, self.mip_port

    @property
    def aepsych(self) -> tuple[str, int]:
        """The address of the AEPsych port."""
        return self.host, self.aepsych_port
