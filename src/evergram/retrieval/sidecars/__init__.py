"""Read stored rows as the version before, more exactly than the way back can.

Read in this order: `version_sidecar` (the codes of a published version's objects, on disk and in
memory), `make_sidecar` (made of both versions' vectors), `reading` (rows and hits of a search, in
steps from version to version), `sidecar_files` (files and folders, as they change).
"""
