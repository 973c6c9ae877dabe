"""Encoders of a graph: a corpus is read as a whole, and an entity's neighbours shape its vector."""
