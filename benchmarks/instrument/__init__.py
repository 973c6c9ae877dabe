"""Runs of the benchmarks as an instrument: figures with units, kept runs, comparison, pages.

Read `figures` (what a section measures), `machine` (where), `runs` (one JSON a run), `compare`
(two runs), and `scale_page` (docs/internet-scale.md).
"""
