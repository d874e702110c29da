"""Many calls over a table of points, into one HDF5 file."""
