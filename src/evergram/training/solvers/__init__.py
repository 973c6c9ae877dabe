"""`training.optimizer = "als"`: alternating least squares on the run's own objective.

Read `pair_squares` (the objective), `row_groups` and `conjugate_gradients` (what a sweep is made
of), `sweep_solver`, then `sweep_step` (how a run takes it for a step).
"""
