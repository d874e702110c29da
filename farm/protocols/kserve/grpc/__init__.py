"""KServe v2 over gRPC: messages and methods. It needs the extra `kserve`.

`endpoint.py` has the methods, which `protocols/kserve/service.py` serves.
"""
