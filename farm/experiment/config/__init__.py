"""AEPsych's configuration files, parsed and checked; and the slow tasks of an experiment.

`reader.py` reads a file into a Config of `definition.py`; `work.py` defines the tasks.
"""
