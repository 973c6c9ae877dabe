"""Compare methods that start from the same version 0, with the protocol of [BC] §4, §5 and App. A.

Read in this order: `settings` (the table [compare], and a recipe for each method), `compare` (train
missing models and measure them), `consumer_tasks`, `consumer_classifiers` and `consumer_scores`
(the consumers of version 0), `training_budget` (the length of training), `summary` (the three
metrics over seeds) and `report` (the table and the figures).
"""
