"""KServe v2's system shared memory: tensors in regions of this machine that a client registered.

`places.py` reads the parameters of tensors, `regions.py` knows the regions, and
`endpoint_carrier.py` copies tensors between regions and calls.
Source: Triton's shared-memory extension.
"""
