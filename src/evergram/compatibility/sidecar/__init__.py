"""Keep what the way back leaves: a few bytes beside each new vector give the old one back.

Read in this order: `residual_basis` (directions, by how much is left along them), `normal_levels`
(a coordinate in b bits), `bit_allocation` (which coordinate gets how many), `trellis` (a vector's
coordinates rounded together), `packed_bits` (codes in bytes), `sidecar` (all of it, and the
reader), `sidecar_file` (on disk).
"""
