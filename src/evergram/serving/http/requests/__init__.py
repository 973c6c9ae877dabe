"""Requests: their fields, their tokens and their bodies.

Read `schemas` (the fields of a request), `auth` (its token), `body` (its bytes, within limits),
`parsing` (JSON to a schema), `arrow_stream` (an Arrow stream to a column), `ids` (fields to ids and
vectors).
"""
