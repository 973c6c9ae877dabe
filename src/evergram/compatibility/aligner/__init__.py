"""Two arrays aligned by the class in `aligner`, of `arrays`, `solution` and `aligner_file`."""
