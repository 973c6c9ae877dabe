"""What the loaders share: compressed files, objects a line, and guesses of column names."""
