"""Answers: their `schemas`, as JSON (`json_answers`) or as Arrow streams (`arrow_answers`), and
`errors`."""
