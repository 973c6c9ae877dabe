"""Vectors that tables of ids start from, made of the interactions: `model.start`.

Read `normalised_matrix` (what two of them are made of), `als_start` (the third), then
`starting_vectors` (how a factorization's tables take them).
"""
