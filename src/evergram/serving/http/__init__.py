"""HTTP: from a connection to an answer.

A request passes `connections` (limits on sockets), `host_check` (no foreign web pages),
`request_handler` (token, body, time, counting), `workers` (threads) and then `vector_routes` or
`listing_routes`. `refresher` reloads the service beside them, and `openapi` describes all of it.

Folders, each importing only from those before it: `answers/`, `fast_paths/`, `requests/`.
"""
