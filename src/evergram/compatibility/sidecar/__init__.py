"""Keep what the way back leaves: a few numbers beside each new vector give the old one back.

Read in this order: `residual_basis` (how many numbers which error takes), `sidecar` (the numbers,
in int8, and the reader), `sidecar_file` (both on disk).
"""
