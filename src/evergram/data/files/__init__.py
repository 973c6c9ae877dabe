"""Parts that loaders share: compressed files, objects in lines, guesses of column names."""
