"""The dashboard: one page, the JSON that it shows, and where that comes from.

Read `schemas` (what the page shows), `data` (from the lineage), `traffic` (from the running
service), `page` (the routes). `static/` holds the page's own files.
"""
