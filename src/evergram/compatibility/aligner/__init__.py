"""Two arrays aligned: `aligner` is the class; the other files are its parts, from the array inward:
`arrays`, `grouped_moments`, `settings`, `report`, `aligner_file`."""
