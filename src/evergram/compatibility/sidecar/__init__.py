"""A few bytes beside each new vector give the old one back: `coding` (directions, levels, bits)
and `sidecar` (the reader).
"""
