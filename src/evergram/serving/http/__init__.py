"""HTTP: from a connection to an answer.

A request passes `connections` (limits on sockets), `access` (hosts and tokens), `request_handler`
(body, threads, time, counting) and then `vector_routes` or `listing_routes`. `openapi` describes
all of it.
"""
