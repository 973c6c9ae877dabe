"""Interactions as tables of DuckDB: loaded, ordered, filtered, and their ids numbered."""
