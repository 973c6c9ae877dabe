"""The experiments of [G1] and [G2], one file each, with shared recipes and methods."""
