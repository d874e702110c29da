"""A module that can be forked, and runs the code that is its last word.

    python -m tests.support.forked_module --lifeline N [--NAME N ...] CODE

In the code, `names` has the values of the options.
"""

from __future__ import annotations

import sys

from farm.machine.forking import forked


def main(words: list[str]) -> None:
    """Run the code; with the option `--forks`, in each process that is forked."""
    if words[0].startswith("--forks="):
        words = forked(int(words[0].partition("=")[2]), lambda: None)
    *options, code = words
    names = dict(zip(options[::2], map(int, options[1::2]), strict=True))
    exec(code, {"names": {name.removeprefix("--"): value for name, value in names.items()}})


if __name__ == "__main__":
    main(sys.argv[1:])
