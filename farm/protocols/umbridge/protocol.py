"""The descriptor of UM-Bridge, with its remote models and the Python objects it adapts."""

from __future__ import annotations

from farm.descriptors import Objects, Protocol, Remote

PROTOCOL = Protocol(
    name="umbridge",
    serve="farm.protocols.umbridge.endpoint:serve",
    remotes=(
        Remote(
            schemes=("http", "https"),
            form="http://HOST:PORT",
            models_at="farm.protocols.umbridge.remote:models_at",
        ),
    ),
    objects=Objects(
        kind="umbridge.Model",
        # Methods that every such model has to define, and one that only they have.
        methods=("get_input_sizes", "get_output_sizes", "supports_evaluate", "__call__"),
        adapt="farm.protocols.umbridge.remote:adapt_object",
        while_loading="farm.protocols.umbridge.files:models_instead_of_servers",
    ),
)
