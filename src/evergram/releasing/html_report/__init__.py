"""Measure and write the HTML report of a version: `--report` of `evergram train` and `upgrade`.

Read `report_file.py` first.
"""
