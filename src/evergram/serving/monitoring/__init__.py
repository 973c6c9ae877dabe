"""Measurements of a running service: `drift` of served vectors, `metrics` for Prometheus,
`request_spans` for OpenTelemetry and `exporting`, which sends them."""
