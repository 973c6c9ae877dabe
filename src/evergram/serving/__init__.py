"""The HTTP service for embeddings, search and transforms, and its Python client.

`serve` runs a service until it is stopped; `listen` returns a `Server` to run yourself.
`create_app` builds an ASGI application from a `Service`. These need `evergram[serve]`.

Read in this order: `settings`, `service` (a lineage that is reloaded when it changes), `app` (the
application and its routes), `server` (listens on a socket). A request passes through `connections`
(limits on sockets), `access` (hosts and tokens), `request_handler` (body, threads, time limit,
metrics), `requests` (its schema), and `vector_routes` or the listings in `answers`. `dashboard/`
has the web page and its data. `client` needs only httpx, NumPy and pyarrow.
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
