"""The report: a page and figures generated from the stored results."""
