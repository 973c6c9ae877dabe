"""Corpora larger than memory: `prepare` writes one, `mapped_corpus` loads it."""
