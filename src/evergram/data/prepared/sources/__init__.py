"""Interactions from files and from memory, in batches that are checked row by row."""
