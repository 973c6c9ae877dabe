"""The columns of a corpus: keys, features, interactions, and tables in memory."""
