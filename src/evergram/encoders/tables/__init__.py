"""Tables of embeddings, and what all rows go through: drawn, looked up, joined, of unit norm."""
