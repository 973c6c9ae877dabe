"""The state of a running training on disk."""
