"""The descriptor of GraphPipe, with its option for `farm serve` and its remote models."""

from __future__ import annotations

from farm.descriptors import Option, Protocol, Remote

PROTOCOL = Protocol(
    name="graphpipe",
    serve="farm.protocols.graphpipe.endpoint:serve",
    options=(
        Option(
            "graphpipe_default",
            metavar="NAME",
            help="The model that GraphPipe's clients find at /.  [default: the only one]",
        ),
    ),
    remotes=(
        Remote(
            schemes=("graphpipe+http", "graphpipe+https"),
            form="graphpipe+http://HOST:PORT",
            models_at="farm.protocols.graphpipe.remote:models_at",
        ),
    ),
)
