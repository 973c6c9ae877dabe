"""Runs of the benchmarks as an instrument: figures, kept runs, a page.

Read `figures` (what a section measures), `machine` (where), `runs` (one JSON a run) and
`scale_page` (docs/internet-scale.md).
"""
