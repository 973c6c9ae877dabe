"""The command that serves a lineage."""

from __future__ import annotations

import gc
import json
import logging
import socket
import sys
from typing import Annotated

import typer

from evergram.cli.options import Json, LineageFolder, app
from evergram.errors import DataError, ServiceError


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
            help="Where a side's embeddings are (default: snapshots in DIR/stores).",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let everybody read everything, wherever it listens.")
    ] = False,
    max_batch: Annotated[int, typer.Option(min=1, help="Rows of one request.")] = 2048,
    max_k: Annotated[int, typer.Option(min=1, help="Results of one query.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1, help="MiB of one request.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds of one request.")] = 30.0,
    workers: Annotated[int, typer.Option(min=1, help="Requests worked on at once.")] = 4,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait; the next is answered 503.")
    ] = 1000,
    as_json: Json = False,
) -> None:
    """Serve embeddings, search and transforms over HTTP, at the version that each reader wants.

    A new version, a label that moves and a change of consumers are taken up without a restart.
    EVERGRAM_ADMIN_TOKEN is the administrator's token.
    """
    try:
        import prometheus_client  # noqa: F401
        import uvicorn

        from evergram.serving.app import create_app
    except ImportError as error:
        raise ServiceError(
            f"'evergram serve' needs {error.name}: pip install 'evergram[serve]'."
        ) from None
    from evergram.lineage.consumers import Consumers
    from evergram.serving.service import Service, has_tokens
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
    )
    # What is taken up, and what cannot be, is said on stderr as it happens.
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("evergram").setLevel(logging.INFO)
    stores = _stores(store)
    # Both before the stores are filled, which may take long.
    settings.check(has_tokens(Consumers.open(lineage)))
    listening = _bound(host, port)
    service = Service.open(lineage, stores)
    config = uvicorn.Config(
        create_app(service, settings),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, int(timeout)),
    )
    server = uvicorn.Server(config)
    # What was imported stays: without this, now and then a request waits while all of it is looked
    # through for garbage.
    gc.collect()
    gc.freeze()
    found = {
        "lineage": str(lineage),
        "url": f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}",
        "version": service.production,
        "open": settings.is_open(service.tokens),
    }
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    who = "open to everybody who can reach it" if found["open"] else "tokens are asked for"
    sys.stderr.write(f"Serving version {found['version']} on {found['url']} ({who}).\n")
    sys.stderr.flush()
    server.run(sockets=[listening])


def _stores(given: list[str] | None) -> dict[str, str] | None:
    """Side to address. Raises: DataError: one is not SIDE=ADDRESS, or a side comes twice."""
    found: dict[str, str] = {}
    for text in given or ():
        side, equals, address = text.partition("=")
        if not (side and equals and address) or side in found:
            raise DataError(f"--store {text} must be SIDE=ADDRESS, once for each side.")
        found[side] = address
    return found or None


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
