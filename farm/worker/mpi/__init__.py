"""Running one model on all ranks of an MPI world.

Every rank checks the world by `world.py`, and runs calls by `group.py`.
"""
