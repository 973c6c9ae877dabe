"""Vectors of queries that come after training: the lists that are asked, and the fold in."""
