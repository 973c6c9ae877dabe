"""`prepare`: files of interactions of any size to a prepared folder, out of core by DuckDB."""
