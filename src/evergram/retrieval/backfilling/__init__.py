"""Refresh a store's older rows, worst first, while it is read.

Read in this order: `backfill`, which orders, computes and writes rows; `backfill_files`, which also
show their progress.
"""
