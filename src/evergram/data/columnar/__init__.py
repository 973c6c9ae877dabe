"""The columns of a corpus: keys, features, and blocks of pairs."""
