"""Carry batches from the dispatcher to workers and answers back."""
