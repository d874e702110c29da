"""Models in the formats of machine-learning frameworks: ONNX, TorchScript, JAX.

`onnx.py`, `torch.py` and `jax.py` have one model class or function each, which `farm` exports.
"""
