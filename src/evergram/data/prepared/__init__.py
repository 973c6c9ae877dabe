"""Corpora that do not fit into memory: columns in a folder that `evergram prepare` writes.

`prepare` writes one, `mapped_corpus` loads it, and `block_sampler` draws epochs from it.
"""
