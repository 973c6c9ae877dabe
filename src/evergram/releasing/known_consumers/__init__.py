"""Consumers that are known when a version is made: those of the lineage with a probe, and models
given from Python; and how they weigh the alignment error."""
