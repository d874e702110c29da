"""GraphPipe: FlatBuffers messages, endpoint, client half, models of running servers.

`endpoint.py` serves it; `remote.py` has GraphpipeModel, a model of a running server.
"""
