"""Getting workers and keeping them alive."""
