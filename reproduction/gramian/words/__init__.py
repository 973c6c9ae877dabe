"""Word vectors by the papers' objective: text, counts, vectors, and how people judge words.

Read in this order: `text` (paragraphs and words), `counts` (how often words are near each other),
`pairs` (the corpus that is trained on), `ppmi` (a peer of another kind), `judgements` and `scores`
(what vectors are measured by), `programs` (each way to vectors, as a run calls it), `made_up` (text
for tests), `experiment`.
"""
