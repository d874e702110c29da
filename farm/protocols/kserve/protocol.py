"""The descriptor of KServe v2, with its remote models; the gRPC port is a setting of the farm."""

from __future__ import annotations

from farm.descriptors import Protocol, Remote

PROTOCOL = Protocol(
    name="kserve",
    serve="farm.protocols.kserve.service:serve",
    remotes=(
        Remote(
            schemes=("kserve+http", "kserve+https"),
            form="kserve+http://HOST:PORT",
            models_at="farm.protocols.kserve.rest.remote:models_at",
        ),
    ),
)
