"""The descriptor that the entry point in pyproject.toml names."""

from farm.descriptors import Option, Protocol, Remote

PROTOCOL = Protocol(
    name="line",
    serve="farm_line.service:serve",
    options=(
        Option(
            "line",
            metavar="HOST:PORT",
            help="Serve models to clients that send lines; port 0 picks a free one.",
        ),
    ),
    check="farm_line.service:read_address",
    remotes=(
        Remote(schemes=("line",), form="line://HOST:PORT", models_at="farm_line.remote:models_at"),
    ),
)
