"""Adaptive sampling: pools of entities, of which a step keeps a few."""
