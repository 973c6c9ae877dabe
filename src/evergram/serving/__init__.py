"""The service: embeddings, search and transforms over HTTP, and the client that asks for them.

`serve` runs a service as the command does; `listen` returns its `Server` first. `create_app` makes
an ASGI application of a `Service`, for a server of your own. These need `evergram[serve]`.

Read `settings`, `service` (a lineage as it is now, reloaded when it changes), `app` (the
application and its routes), `server` (from a lineage to a listening server). A request passes
`connections` (limits on sockets), `access` (hosts and tokens), `request_handler` (body, threads,
time, counting), `requests` (its schema) and `vector_routes` or a list of `answers`. `dashboard/` is
the page and its data. `client` needs httpx, NumPy and pyarrow alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.serving.app import create_app as create_app
    from evergram.serving.client import Client as Client
    from evergram.serving.server import Server as Server
    from evergram.serving.server import listen as listen
    from evergram.serving.server import serve as serve
    from evergram.serving.service import Service as Service
    from evergram.serving.settings import ServiceSettings as ServiceSettings

export_lazily(__name__)
