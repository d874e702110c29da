"""One folder per protocol: codec, endpoints, client half, remote model, descriptor.

Begin with a folder's `protocol.py`, the descriptor, which names its functions; `site.py` defines
the services that a farm offers them. Protocols do not import one another; `encoding/`, `http/` and
`grpc/` hold the code that several need. All of a folder except `endpoint*`, `connection`, `service`
and `remote` is pure: no socket, clock or thread.
"""
