"""Methods side by side from the same version 0, by the protocol of [BC] §4, §5 and App. A.

Read in this order: `settings` (the table [compare], and a recipe for each method), `compare` (train
what is missing and measure it), `consumer_tasks`, `consumer_classifiers` and `consumer_scores` (the
consumers of version 0), `training_budget` (how long models were trained), `summary` (the three
metrics over seeds) and `report` (the table and the figures).
"""
