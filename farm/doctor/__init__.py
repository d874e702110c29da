"""Checks of the environment, this machine, a farm and the batch system; nothing is changed."""
