"""Corpora that do not fit into memory: columns in a folder that `evergram prepare` writes.

`prepared_record` says what a folder has: `sources`, `engine` and `writing` make it, and
`prepared_corpus` loads it. To read it: `column_file` (one column on disk), `mapped_corpus` (a
`Corpus` over such columns), `part_writer` (the part of it that a rule marks, such as a version's
training part), `pair_index` (its pairs by query), `block_order` (a shuffle in bounded memory) and
`block_sampler` (an `ExampleSampler` that streams by it); `cache_folder` is where the derived files
are.
"""
