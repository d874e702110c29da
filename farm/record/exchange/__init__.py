"""Records and other files: what a record holds, exports, merges, and imports of sweeps."""
