"""Search the values of a recipe's keys: `search_space`, `trials` (`tune`), `best_recipe`."""

from evergram.training.tuning.search_space import KeyRange, SearchSpace

__all__ = ["KeyRange", "SearchSpace"]
