"""Refresh a store's older rows, worst first, while it is read.

Read in this order: `backfill`, which computes and writes rows in the order of `backfill_order`;
`backfill_files`; `backfill_progress`, which shows them.
"""
