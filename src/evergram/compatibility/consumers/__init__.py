"""Alignment weighed by consumers that are known: their input Fisher matrices and what they make of
the alignment error ([BC] §6 names it as future work)."""
