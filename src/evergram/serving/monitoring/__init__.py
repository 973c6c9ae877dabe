"""Measurements of a running service: `drift` of served vectors, `metrics` for Prometheus."""
