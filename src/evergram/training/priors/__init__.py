"""Priors: what the penalty pulls unobserved scores towards, π_ab = ⟨q_a, r_b⟩. [G2] App. B.

Read `kinds` (the table of kinds and their settings), then `factors` (how q and r are made).
"""
