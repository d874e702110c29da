"""The record: every finished evaluation of repeatable models, in one file, and answers from it.

`file.py` is the file, `recorder.py` what a farm writes and reads there.
"""
