"""The points that a sweep evaluates: designs of experiments, tables, plans.

`prepare.py` turns a request into a Plan of `plan.py`, whose points are in the space of `../space/`.
"""
