"""KServe v2, the Open Inference Protocol: the code that REST and gRPC share; each has a folder.

`service.py` serves both; `request.py` has the requests without their encoding.
"""
