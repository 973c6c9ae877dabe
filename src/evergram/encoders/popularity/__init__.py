"""The popularity of candidates in their published vectors.

`popularity_factor`: the number that each candidate's vector is multiplied by, and the part of an
encoder that keeps the counts.
"""
