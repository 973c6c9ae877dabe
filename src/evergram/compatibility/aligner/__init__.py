"""Two arrays aligned by the class in `aligner`, of `solution` and `aligner_file`."""
