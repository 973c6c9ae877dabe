"""Twelve small recipes whose published bytes show whether a move changed what is computed."""
