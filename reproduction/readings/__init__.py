"""What is read from a training while it runs: one file a reading."""
