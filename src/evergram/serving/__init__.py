"""The service: embeddings, search and transforms over HTTP, and the client that asks for them.

Read in this order:

1. `service`: what is served, taken up anew when the lineage changes (`change_watch`); `settings`.
2. `app`: the application, its routes, and what holds for all of them.
3. `http/`: a request's way, from the connection to the answer.
4. `dashboard/` and `monitoring/`: what people and Prometheus see.
5. `client`: `Client`, with the names and the results of `evergram.Reader`. It needs httpx, NumPy
   and pyarrow, and loads nothing of the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.serving.app import create_app
    from evergram.serving.client import Client
    from evergram.serving.service import Service

__all__ = [
    "Client",
    "Service",
    "create_app",
]

export_lazily(
    __name__,
    {
        "app": "create_app",
        "client": "Client",
        "service": "Service",
    },
)
