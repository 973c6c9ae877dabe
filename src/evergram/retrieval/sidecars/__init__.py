"""Stored rows read as the version before by a few bytes of each old vector: `version_sidecar` (the
codes of a version's objects) and `sidecar_files` (files and folders of them, as they change).
"""
