"""What `make docs` adds: pages outside docs/, drawings of diagrams, lists in docstrings."""
