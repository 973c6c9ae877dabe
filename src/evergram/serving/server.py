"""Serve a lineage over HTTP: open it as a service, and listen on a socket."""

from __future__ import annotations

import errno
import gc
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from evergram.errors import ServiceError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.retrieval.version_sidecar import SidecarFiles
from evergram.serving.service import Service, has_tokens
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import Documents, ServedTexts
from evergram.texts.addresses import check_encoder_address
from evergram.texts.record import RECORDED

log: logging.Logger = logging.getLogger("evergram.serving")

FILES = 256  # file descriptors reserved for other things than connections: stores, logs, modules


class Server:
    """A service listening at an address, created by `listen`; `run` answers its requests. Clients
    can connect at once, and wait until `run` is called."""

    def __init__(
        self, service: Service, settings: ServiceSettings, listening: socket.socket
    ) -> None:
        # Imported here so that `listen` can report a missing package.
        from evergram.serving.app import create_app
        from evergram.serving.connections import uvicorn_server
        from evergram.serving.metrics import export_traces

        self.service: Service = service
        self.settings: ServiceSettings = settings
        export_traces()
        app = create_app(service, settings)
        self._uvicorn = uvicorn_server(app, settings, app.state.handler.connections)
        self._listening = listening
        listening.listen(self._uvicorn.config.backlog)

    @property
    def url(self) -> str:
        host, port = self.settings.host, self._listening.getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def as_json(self) -> dict[str, Any]:
        """Return the server's address and version, as in `evergram serve --json`."""
        is_open = self.settings.is_open(self.service.tokens)
        return {"url": self.url, "version": self.service.production, "open": is_open}

    def run(self) -> None:
        """Answer requests until `stop` is called or, in the main thread, SIGTERM or SIGINT is
        received. Requests in progress are finished first."""
        # Exclude existing objects from garbage collection: scanning all imported modules would
        # delay a request from time to time.
        gc.collect()
        gc.freeze()
        try:
            self._uvicorn.run(sockets=[self._listening])
        finally:
            gc.unfreeze()

    def stop(self) -> None:
        """Make `run` return after the requests in progress. Thread-safe."""
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Release the address and the stores of a server that never ran."""
        self._listening.close()
        if not self._uvicorn.started:
            self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listen(
    place: str | Path,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
) -> Server:
    """Open a lineage as a service, and listen at an address; clients wait while stores are filled.

    Args:
        place: folder or address of the lineage.
        port: 0 chooses a free port.
        stores: maps a side to the address of a store; by default the lineage's snapshots.
        settings: limits and access; `settings.host` is the address to listen on.
    Raises: ServiceError: the address is taken, a package of `evergram[serve]` is missing, or see
        `ServiceSettings.check`. EvergramError: the lineage, its consumers or a store cannot be
        opened.
    """
    try:
        import evergram.serving.app
        import evergram.serving.connections  # noqa: F401
    except ModuleNotFoundError as error:
        raise ServiceError(f"Serving needs {error.name}: pip install 'evergram[serve]'.") from None
    settings = ServiceSettings() if settings is None else settings
    settings.check(has_tokens(ConsumerRegistry.open(place)))
    allowed = allowed_connections(settings.max_connections)
    settings = replace(settings, max_connections=allowed)
    listening = bound_socket(settings.host, port)
    try:
        return Server(_service_of(place, stores, settings), settings, listening)
    except BaseException:
        listening.close()
        raise


def _service_of(
    place: str | Path, stores: Mapping[str, str] | None, settings: ServiceSettings
) -> Service:
    """Return the service of a lineage, with the sidecars and encoders from the settings."""
    for address in settings.encoders:
        if address != RECORDED:
            check_encoder_address(address)
    texts = documents = None
    if settings.texts is not None:
        folder = None if settings.kept is None else Path(settings.kept)
        documents = Documents(Path(settings.texts), folder)
    if settings.encoders:
        cache, every = settings.text_cache, settings.canary_every
        texts = ServedTexts(settings.encoders, cache, every, documents, settings.timeout)
    return Service(place, stores, texts, SidecarFiles(settings.sidecars, settings.sidecar_depth))


def serve(
    place: str | Path,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
) -> None:
    """Serve a lineage until the process is told to stop, like `evergram serve`.

    Args, Raises: see `listen`.
    """
    with listen(place, port=port, stores=stores, settings=settings) as server:
        server.run()


def allowed_connections(wanted: int) -> int:
    """Raise the process's limit on open files if needed, and return how many connections fit below
    it, at most `wanted`. At the limit, the process could not accept any connection."""
    try:
        import resource
    except ImportError:  # systems without such a limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, endless = wanted + FILES, resource.RLIM_INFINITY
    if soft != endless and soft < files:
        more = files if hard == endless else min(files, hard)
        # Some systems enforce a limit below the one that they report.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == endless or soft >= files:
        return wanted
    allowed = max(1, soft - FILES)
    sentence = "Only %d open files are allowed, so %d connections, not %d; run 'ulimit -n %d'."
    log.warning(sentence, soft, allowed, wanted, files)
    return allowed


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address. (uvicorn would log a traceback if it is in use.)"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is given; otherwise an answer of
    # several packets waits 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:
        listening.close()
        todo = "choose another with --port, above 1023"
        number = getattr(error, "errno", None)
        if number == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror | UnicodeError):
            todo = "give --host a name or address of this machine without a port, such as 127.0.0.1"
        reason = getattr(error, "strerror", None) or error
        raise ServiceError(f"Cannot listen on {host}:{port}: {reason}; {todo}.") from error
    return listening
