"""Assembles a farm: HTTP front door, status page, metrics, and starting and stopping in order.

Commands use `farm.py`, a complete farm; Python programs use `in_process.py`.
"""
