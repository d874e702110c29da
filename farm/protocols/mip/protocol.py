"""The descriptor of MIP, with its options for `farm serve` and its remote models."""

from __future__ import annotations

from farm.descriptors import Option, Protocol, Remote

MAX_BYTES = 64 << 20
"""Default limit of a packet's payload in bytes."""

PROTOCOL = Protocol(
    name="mip",
    serve="farm.protocols.mip.service:serve",
    options=(
        Option(
            "mip",
            metavar="NAME=ADDRESS",
            help="Serve a model over MIP, for KubeMo's clients, at HOST:PORT or unix:/path; "
            "repeatable.",
            default=(),
            repeatable=True,
        ),
        Option(
            "mip_max_bytes",
            help="Largest payload of a MIP packet.  [default: 64 MiB]",
            metavar="BYTES",
            kind=int,
            default=MAX_BYTES,
        ),
    ),
    check="farm.protocols.mip.address:read_options",
    remotes=(
        Remote(
            schemes=("mip", "mip+unix"),
            form="mip://HOST:PORT",
            models_at="farm.protocols.mip.remote:models_at",
        ),
    ),
)
