"""Say where a model ranks well and where it does not: by candidate, by query, by neighbours."""
