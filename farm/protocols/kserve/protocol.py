"""The descriptor of KServe v2: its dialect and remote models; the farm has the gRPC port."""

from __future__ import annotations

from farm.descriptors import Option, Protocol, Remote

PROTOCOL = Protocol(
    name="kserve",
    serve="farm.protocols.kserve.service:serve",
    options=(
        Option(
            "kserve_dialect",
            metavar="[open|triton]",
            help="Name and errors of KServe v2: farm's own, or those of NVIDIA's Triton, with raw "
            "gRPC answers to typed requests.  [default: open]",
            default="open",
        ),
    ),
    check="farm.protocols.kserve.dialect:read_options",
    remotes=(
        Remote(
            schemes=("kserve+http", "kserve+https"),
            form="kserve+http://HOST:PORT",
            models_at="farm.protocols.kserve.rest.remote:models_at",
        ),
    ),
)
