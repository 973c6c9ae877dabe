"""`training.optimizer = "als"`: alternating least squares on the run's own objective."""
