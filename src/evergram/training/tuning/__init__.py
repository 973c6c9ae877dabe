"""Search the values of a recipe's keys.

Read `search_space` (the ranges and choices of each key), `default_space`,
`proposals` (a trial, and what Optuna
proposes after some), `trial_journal` (trials that have ended, in a file), `trials` (`tune`)
and `best_recipe` (a file of the best values).
"""

from evergram.training.tuning.search_space import KeyRange, SearchSpace

__all__ = ["KeyRange", "SearchSpace"]
