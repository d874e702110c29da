"""Parts of `make docs`: pages outside docs/, drawings of diagrams, lists in docstrings."""
