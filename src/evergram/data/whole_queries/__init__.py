"""Batches of whole queries: `whole_query_sampler`, each query with all of its pairs at once."""
