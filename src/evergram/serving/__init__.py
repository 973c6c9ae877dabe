"""Serving: a lineage over HTTP, at the version that each consumer was built on.

`serve` runs a service as the command does; `listen` gives its `Server` first. `create_app` makes an
ASGI application of a `Service` for a server of your own. `Client` reads a service from Python, and
needs neither torch nor the packages of a server.

Read `settings`, `service` (a lineage as it is now, reloaded when it changes), `served_state` (the
state that a request holds), `app` (the routes), `server`. Folders, each importing only from those
before it: `monitoring/` (drift, metrics), `dashboard/` (the page and its data), `http/` (requests
and answers).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.serving.app import create_app
    from evergram.serving.client import Client
    from evergram.serving.server import Server, listen, serve
    from evergram.serving.service import Service
    from evergram.serving.settings import ServiceSettings, admin_token

__all__ = [
    "Client",
    "Server",
    "Service",
    "ServiceSettings",
    "admin_token",
    "create_app",
    "listen",
    "serve",
]

# Imported when first used: the client does not wait for torch, nor need the server's packages.
_HOME = {
    "Client": "client",
    "Server": "server",
    "Service": "service",
    "ServiceSettings": "settings",
    "admin_token": "settings",
    "create_app": "app",
    "listen": "server",
    "serve": "server",
}
# The packages of the extra `serve`.
_EXTRA = ("fastapi", "h11", "orjson", "prometheus_client", "starlette", "uvicorn")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evergram.serving' has no attribute {name!r}")
    try:
        return getattr(import_module(f"evergram.serving.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        from evergram.errors import ServiceError

        raise ServiceError(f"Serving needs {error.name}: pip install 'evergram[serve]'.") from None


def __dir__() -> list[str]:
    return __all__
