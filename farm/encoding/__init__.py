"""Pure functions that several protocols share: JSON numbers, configs, rows, tensors, errors.

Codecs use `json_numbers.py` and `tensors.py`; `errors.py` has errors as JSON.
"""
