"""`farm init`: write a model to start from, and print the commands that use it."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click

FUNCTION = '''\
"""A model for farm: replace the function with yours. docs/models.md lists what a model can have."""

import farm


# Each argument is an input, an array of the declared size; the returned array is the output.
@farm.model(inputs={"load": 1, "thickness": 1}, outputs={"deflection": 1})
def beam(load, thickness):
    """Return the deflection (m) of a cantilever's tip under a load (N/m), by its thickness (m)."""
    inertia = 0.1 * thickness**3 / 12
    return load * 2.0**4 / (8 * 210e9 * inertia)
'''

COMMAND = '''\
"""A model for farm that runs a program: replace the program with yours.

For each call farm writes the template with the call's numbers to a file in a folder of its own,
runs the command there, and reads the outputs from what the program prints. docs/models.md explains
templates, commands and readers.
"""

from pathlib import Path

from farm.worker.command import CommandModel
from farm.worker.readers import regex

TEMPLATE = """\\
LOAD ${load}
THICKNESS ${thickness}
"""

# {input} is the path of the written file, and a literal brace is written twice. This awk program
# stands for a simulator: it computes how far the tip of a cantilever (m) bends under a load (N/m).
SIMULATOR = """
    awk '/LOAD/      {{ load = $2 }}
         /THICKNESS/ {{ inertia = 0.1 * $2 ^ 3 / 12 }}
         END         {{ printf "DEFLECTION = %.17g\\\\n", load * 2 ^ 4 / (8 * 210e9 * inertia) }}'
        {input}
"""

beam = CommandModel(
    SIMULATOR,
    name="beam",
    directory=Path(__file__).parent,  # relative paths begin here
    template=TEMPLATE,
    inputs={"load": 1, "thickness": 1},
    outputs={"deflection": 1},
    read={"deflection": regex(r"DEFLECTION = *(\\S+)")},
    timeout_s=60,
)
'''

JAX = '''\
"""A model for farm with all derivatives, from a JAX function: replace the function with yours."""

import farm
import jax.numpy as jnp


# Each argument is an input, an array of the declared size; the returned array is the output. farm
# compiles the function and evaluates up to 64 points at once.
@farm.jax_model(inputs={"load": 1, "thickness": 1}, outputs={"deflection": 1}, max_batch=64)
def beam(load, thickness):
    """Return the deflection (m) of a cantilever's tip under a load (N/m), by its thickness (m)."""
    inertia = 0.1 * jnp.power(thickness, 3) / 12
    return load * 2.0**4 / (8 * 210e9 * inertia)
'''

KINDS = {"function": FUNCTION, "command": COMMAND, "jax": JAX}
"""The text of a model's file, by kind. All are the same model: one set of commands uses them."""
HIDDEN = ("farm", "jax", "numpy")
"""Packages that a file of this name would hide from its neighbours."""

EXAMPLES = """\b
Examples:
  farm init                        model.py, with a function to replace
  farm init beam.py
  farm init fin.py --kind command  a simulator that reads and writes files
  farm init fin.py --kind jax      a JAX function, which has all derivatives
"""


@click.command(epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path), default=Path("model.py"), metavar="[FILE]")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    default="function",
    show_default=True,
    help="The model's kind: a Python function, a command-line program, or a JAX function.",
)
def init(file: Path, kind: str) -> None:
    """Write a model to start from, and print the next commands.

    FILE must not exist yet.  [default: model.py]
    """
    if not re.fullmatch(r"[\w.-]+\.py", file.name):
        raise click.UsageError(
            f"the file is {file.name!r}; expected letters, digits, '_', '-', '.' and the end .py"
        )
    if file.stem in HIDDEN:
        raise click.UsageError(
            f"{file.name} would hide the package {file.stem} from programs beside it; "
            "choose another name"
        )
    try:
        with file.open("x") as new:
            new.write(KINDS[kind])
    except FileExistsError:
        raise click.ClickException(
            f"{file} exists and is left as it is; choose another name, as in farm init FILE"
        ) from None
    click.echo(f"{file} has a model to start from: replace what it computes with yours. Next:")
    for line in _next(file, kind):
        click.echo(line)


def _next(file: Path, kind: str) -> list[str]:
    """Return the next commands; those of the shell are indented."""
    name, out = shlex.quote(str(file)), shlex.quote(f"{file.stem}.h5")
    missing = kind == "jax" and not importlib.util.find_spec("jax")
    return [
        "",
        *(['  pip install "modelfarm[jax]"'] if missing else []),
        f"  farm sweep {name} --param load=100:1000 --param thickness=log:0.01:0.05 \\",
        f"      --design sobol:256 -o {out}",
        f"  farm sweep plot {out}",
        "",
        "Or serve it to every client, and call it from another terminal:",
        "",
        f"  farm serve {name} --workers 4",
        "  farm call load=500 thickness=0.02",
    ]
