"""Replace an embedding model that somebody else made: which way, at what cost.

Read in this order: `migration_vectors` (texts and queries, each encoded by both models), `ways`
(what a searcher gets by each way, and what it costs), `verdict` (the rule that chooses one),
`unjudged` (why files cannot be judged), `migration_plan` (all of it as one report); `kept_files`
(the vectors that a migration by use has kept, checked), `finish_migration` (these and the rest, as
one file).
"""
