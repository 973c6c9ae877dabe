"""The experiments of [G1] and [G2], one file each, over shared recipes and methods."""
