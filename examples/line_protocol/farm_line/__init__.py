"""A protocol in a package of its own: lines of text over TCP, such as `double 1 2 3`.

`protocol.py` is the entry point: farm finds it by pyproject.toml, and it names all functions.
"""
