"""Search while an index moves from an old embedding model to a new one.

Read in this order: `cascade` (the old index proposes, the new model's vectors, computed when they
are first needed and kept, decide), `half_migrated` (some rows in the old space, some in the new
one, one list of hits).
"""
