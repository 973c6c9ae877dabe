"""Search the values of a recipe's keys.

Read `search_space` (the ranges and choices of each key, and the overrides of one trial).
"""

from evergram.training.tuning.search_space import KeyRange, SearchSpace

__all__ = ["KeyRange", "SearchSpace"]
