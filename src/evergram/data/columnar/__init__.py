"""The columns that a corpus is made of: keys, features, interactions, and tables in memory."""
