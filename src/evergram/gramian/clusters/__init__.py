"""Clusters of candidates, as moments that batches are averaged into."""
