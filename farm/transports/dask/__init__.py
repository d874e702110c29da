"""The transport to a Dask cluster, which counts as one elastic worker.

The server uses `transport.py`; the processes of the cluster run `worker.py`.
"""
