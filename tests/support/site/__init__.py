"""What `make docs` adds to MkDocs: files outside docs/, drawings of diagrams, lists in docstrings."""
