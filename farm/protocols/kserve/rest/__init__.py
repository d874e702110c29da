"""KServe v2 over HTTP: paths, JSON and raw tensors, generate, client half, remote model.

`endpoint.py` answers requests; `remote.py` has KserveModel, a model of a running server.
"""
