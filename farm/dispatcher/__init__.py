"""The scheduler with a clock: accepts calls, splits long ones, sends tasks to workers."""
