"""Strings in requests: encoded by the newest version's encoder, batched, cached and checked.

Read in this order: `vector_cache`, `batcher`, `checked_encoder`, `served_texts`.
"""
