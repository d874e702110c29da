"""AEPsych's protocol: JSON over TCP, answered by the experiments of `experiment/`.

`service.py` serves it, and `codec.py` has its messages, for `experiment/` too.
"""
