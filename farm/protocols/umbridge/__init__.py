"""UM-Bridge 1.0: codec, endpoint, client half, models of running servers, model files.

`endpoint.py` serves it; `remote.py` has the models of running servers, and adapts Python objects.
"""
