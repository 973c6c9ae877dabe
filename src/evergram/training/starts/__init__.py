"""Vectors that tables of ids start from, made of the interactions: `model.start`.

Read `normalised_matrix` (what they are made of), then `starting_vectors` (the kinds of them, and
how a factorization's tables take them).
"""
