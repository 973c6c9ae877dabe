"""`aligner` (the public class), `solution` (fitting and report) and `aligner_file` (its file)."""
