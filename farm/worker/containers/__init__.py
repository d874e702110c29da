"""Container images with an UM-Bridge server in them, as models.

Begin with `model.py`, which starts a container and waits for it; `runtime.py` reads what the
user wrote and knows docker, podman and apptainer, `keeping.py` removes containers.
"""
