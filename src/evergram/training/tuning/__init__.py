"""Search the values of a recipe's keys: `search_space`, and `trials` (`tune`)."""

from evergram.training.tuning.search_space import KeyRange, SearchSpace

__all__ = ["KeyRange", "SearchSpace"]
