"""MIP, KubeMo's protocol: packets over TCP or a Unix socket; its service and remote models.

`service.py` serves it; `remote.py` has MipModel, a model of a running server.
"""
