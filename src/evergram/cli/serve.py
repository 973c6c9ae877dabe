"""The command that serves a lineage."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.options import Json, LineageFolder, app, stores_by_side

if TYPE_CHECKING:
    from evergram.serving.server import Server


@app.command()
def serve(
    lineage: LineageFolder,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 8000,
    store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIDE=ADDRESS",
            help="Store of a side's embeddings (default: snapshots in DIR/stores); repeatable. "
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
            help="A name that requests may address it by: shop.example, *.example, or * for any "
            "(default: localhost; any, where tokens are asked for); repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve embeddings, search and transforms over HTTP, at the version that each reader wants.

    New versions, moved labels and changed consumers are loaded without a restart. The environment
    variable EVERGRAM_ADMIN_TOKEN is the administrator's token.
    """
    from evergram.serving import ServiceSettings, admin_token, listen

    settings = ServiceSettings(
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
        max_connections=max_connections,
        silence=silence,
        keep_alive=keep_alive,
    )
    # The log on stderr says which changes were loaded, and which could not be.
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("evergram").setLevel(logging.INFO)
    stores = stores_by_side(store or ()) or None
    with listen(lineage, port=port, stores=stores, settings=settings) as server:
        _announce(lineage, server, as_json)
        server.run()


def _announce(lineage: str, server: Server, as_json: bool) -> None:
    sys.stderr.write(f"{server.checked_sentence}\n")
    facts = server.as_json()
    if as_json:
        sys.stdout.write(json.dumps({"lineage": lineage, **facts}) + "\n")
        sys.stdout.flush()
    access = "open to everybody who can reach it" if facts["open"] else "tokens are asked for"
    sys.stderr.write(f"Serving version {facts['version']} on {facts['url']} ({access}).\n")
    sys.stderr.flush()
