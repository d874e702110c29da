"""Bytes to values and back for each protocol; pure: no sockets, clocks or threads here."""
