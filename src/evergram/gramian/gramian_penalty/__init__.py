"""The penalty on all pairs as a loss in your own training loop.

Read `gramian_penalty` (the module), then `penalty_side` (its state for each side) and
`entity_measure` (weights from counts).
"""
