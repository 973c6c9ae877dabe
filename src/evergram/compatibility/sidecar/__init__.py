"""A few bytes next to each new vector give the old one back: `coding` (directions, levels, bits)
and `sidecar` (the reader).
"""
