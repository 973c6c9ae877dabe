"""The command that serves a lineage."""

from __future__ import annotations

import gc
import json
import logging
import socket
import sys
from contextlib import suppress
from typing import Annotated

import typer

from evergram.cli.options import Json, LineageFolder, app, stores_by_side
from evergram.errors import ServiceError

# Files of a process that are no connections: of stores, logs, modules.
FILES = 256


@app.command()
def serve(
    lineage: LineageFolder,
    host: Annotated[
        str, typer.Option(help="Where to listen; others than this machine need tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8000,
    store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIDE=ADDRESS",
            help="Where a side's embeddings are (default: snapshots in DIR/stores); repeatable. "
            "A database's password is best in PGPASSWORD or ~/.pgpass.",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let everybody read everything, wherever it listens.")
    ] = False,
    max_batch: Annotated[int, typer.Option(min=1, help="Rows of one request.")] = 2048,
    max_k: Annotated[int, typer.Option(min=1, help="Results of one query.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1, help="MiB of one request.")] = 16,
    max_buffered: Annotated[
        int, typer.Option(min=1, help="MiB of all requests at once, beside their first 64 KiB.")
    ] = 256,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds of one request.")] = 30.0,
    workers: Annotated[int, typer.Option(min=1, help="Requests worked on at once.")] = 4,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait; the next is answered 503.")
    ] = 1000,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections; past it, the longest silent is closed.")
    ] = 1000,
    silence: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a client may be silent within a request.")
    ] = 10.0,
    keep_alive: Annotated[
        int, typer.Option(min=1, help="Seconds that a connection stays open between requests.")
    ] = 120,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that it is asked for under, such as shop.example, *.example or * for any "
            "(default: localhost; where tokens are asked for, any).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve embeddings, search and transforms over HTTP, at the version that each reader wants.

    A new version, a label that moves and a change of consumers are taken up without a restart.
    EVERGRAM_ADMIN_TOKEN is the administrator's token.
    """
    try:
        import prometheus_client  # noqa: F401

        from evergram.serving.app import create_app
        from evergram.serving.http.connections import server_of
    except ImportError as error:
        raise ServiceError(
            f"'evergram serve' needs {error.name}: pip install 'evergram[serve]'."
        ) from None
    from evergram.lineage.consumers.registry import ConsumerRegistry
    from evergram.serving.service import Service, checked_sentence, has_tokens
    from evergram.serving.settings import Settings, admin_token

    settings = Settings(
        host=host,
        no_auth=no_auth,
        admin_token=admin_token(),
        max_batch=max_batch,
        max_k=max_k,
        max_body=max_body * 2**20,
        timeout=timeout,
        workers=workers,
        max_waiting=max_waiting,
        allowed_hosts=tuple(allowed_host or ()),
        max_buffered=max_buffered * 2**20,
        max_connections=_room_for(max_connections),
        silence=silence,
        keep_alive=keep_alive,
    )
    # What is taken up, and what cannot be, is said on stderr as it happens.
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("evergram").setLevel(logging.INFO)
    stores = stores_by_side(store or ()) or None
    # Both before the stores are filled, which may take long.
    settings.check(has_tokens(ConsumerRegistry.open(lineage)))
    listening = _bound(host, port)
    service = Service.open(lineage, stores)
    application = create_app(service, settings)
    server = server_of(application, settings, application.state.front.connections)
    # What was imported stays: without this, now and then a request waits while all of it is looked
    # through for garbage.
    gc.collect()
    gc.freeze()
    files = service.files()
    sys.stderr.write(f"{checked_sentence(files)}\n")
    found = {
        "lineage": str(lineage),
        "url": f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}",
        "version": service.production,
        "open": settings.is_open(service.tokens),
        "checked": [name for name, done in files.items() if done],
        "unchecked": [name for name, done in files.items() if not done],
    }
    # Whoever reads where it is may ask at once; until the server takes them, connections wait.
    listening.listen(server.config.backlog)
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    who = "open to everybody who can reach it" if found["open"] else "tokens are asked for"
    sys.stderr.write(f"Serving version {found['version']} on {found['url']} ({who}).\n")
    sys.stderr.flush()
    server.run(sockets=[listening])


def _room_for(connections: int) -> int:
    """Return how many connections, of so many, the process may have: each takes one of its files.

    Past its limit of files, a process takes no connection at all, and closes none.
    """
    try:
        import resource
    except ImportError:  # where processes have no such limit
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        # Some systems have a limit below the one that they tell.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(1, soft - FILES)
    sys.stderr.write(
        f"This process may open {soft} files, so it takes {room} connections at once, not "
        f"{connections}; 'ulimit -n {wanted}' makes room for them.\n"
    )
    return room


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens; uvicorn itself would end the process with a traceback's worth of
    log where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Said to be TCP, or asyncio leaves Nagle's algorithm on, and an answer of several packets waits
    # 40 ms for the client's delayed acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ServiceError(
            f"{host}:{port} cannot be listened on: {error.strerror}; choose another with --port."
        ) from error
    return found
