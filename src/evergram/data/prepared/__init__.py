"""Corpora that do not fit into memory: `prepare` writes one, `mapped_corpus` loads it."""
