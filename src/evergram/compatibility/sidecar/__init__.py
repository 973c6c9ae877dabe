"""A few bytes next to each new vector restore the old one: `coding` (directions, levels, bits) and
`sidecar` (fit, encode and read).
"""
