"""Priors π_ab = ⟨q_a, r_b⟩ that the penalty pulls unobserved scores towards. [G2] App. B.

Read `kinds` (the table of kinds and their settings), then `factors` (how q and r are made).
`measures` are the weights of entities in it, and wherever else all pairs count.
"""
