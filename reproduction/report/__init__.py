"""The report: pages and pictures made from the kept results by one command, never by hand."""
