"""The points that a sweep evaluates: parameters, designs of experiments, plans.

`prepare.py` turns a request into a Plan of `plan.py`; `parameters.py` has the parameter types.
"""
