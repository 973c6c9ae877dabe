"""How queries that come after training get a vector of a trained version."""
