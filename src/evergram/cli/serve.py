"""The command that serves a lineage."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergram.cli.app import app
from evergram.cli.options import Json, LineageFolder, refuse_idle, stores_by_side
from evergram.log_lines import log_to_stderr, write_line

if TYPE_CHECKING:
    from evergram.serving.server import Server
    from evergram.serving.server_processes import ServerProcesses


Host = Annotated[
    str, typer.Option(help="Address to listen on; any but this machine's own needs tokens.")
]
Port = Annotated[
    int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")
]
ServedStores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="SIDE=ADDRESS",
        help="Store of a side's embeddings (default: snapshots in DIR/stores); repeatable. "
        "A database's password is best in PGPASSWORD or ~/.pgpass.",
    ),
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Let everybody read everything, wherever it listens.")
]
MaxBatch = Annotated[int, typer.Option(min=1, help="Most rows of one request.")]
MaxK = Annotated[int, typer.Option(min=1, help="Most results of one query.")]
MaxBody = Annotated[int, typer.Option(min=1, help="Most MiB of one request.")]
MaxBuffered = Annotated[
    int, typer.Option(min=1, help="Most MiB of all requests at once, beside their first 64 KiB.")
]
Timeout = Annotated[float, typer.Option(min=0.001, help="Most seconds of one request.")]
Workers = Annotated[
    int,
    typer.Option(
        min=1,
        help="Most requests that are worked on at once; as many more wait for an encoder of text.",
    ),
]
Processes = Annotated[
    int, typer.Option(min=1, help="Processes behind the port; limits hold for each.")
]
MaxWaiting = Annotated[
    int, typer.Option(min=0, help="Most requests that may wait; the next is answered 503.")
]
MaxConnections = Annotated[
    int, typer.Option(min=1, help="Most connections; past that, the longest silent one is closed.")
]
Silence = Annotated[
    float, typer.Option(min=0.1, help="Seconds that a client may be silent within a request.")
]
KeepAlive = Annotated[
    int, typer.Option(min=1, help="Seconds that a connection stays open between requests.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="A name that requests may address it by: shop.example, *.example, or * for any "
        "(default: localhost; any, where tokens are asked for); repeatable.",
    ),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        metavar="ADDRESS",
        help="Encode strings by this encoder of text (docs/text.md), if it is the one that the "
        "version records; recorded: by the recorded one, unless it is python: or openai:; "
        "repeatable.",
    ),
]
MaxText = Annotated[int, typer.Option(min=1, help="Most characters of a text.")]
TextCache = Annotated[int, typer.Option(min=0, help="MiB of vectors of recent texts.")]
CanaryEvery = Annotated[
    float, typer.Option(min=1, help="Seconds between two checks of the encoders.")
]
TextFile = Annotated[
    str | None,
    typer.Option(
        "--texts",
        metavar="FILE",
        help="Ids and texts (columns id and text) of the stored objects, so that a search may "
        "re-rank by --encoder.",
    ),
]
KeptFolder = Annotated[
    str | None,
    typer.Option(
        "--kept",
        metavar="DIR",
        help="Folder where the vectors computed for such searches are saved "
        "(default: they are forgotten at the end).",
    ),
]
Sidecars = Annotated[
    list[str] | None,
    typer.Option(
        "--sidecar",
        metavar="FILE|DIR",
        help="A file of 'evergram vectors sidecar', by which objects are read as the version "
        "before, or a folder of such, in which new ones are looked for; repeatable.",
    ),
]
SidecarDepth = Annotated[
    int,
    typer.Option(
        "--sidecar-depth",
        min=1,
        metavar="N",
        help="Hits by the way back of which a search takes the best by a sidecar: more find more, "
        "and take longer.",
    ),
]
MIB = 2**20


@app.command(epilog="Example: evergram serve lineages/shop --port 8000")
def serve(
    context: typer.Context,
    lineage: LineageFolder,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    store: ServedStores = None,
    no_auth: NoAuth = False,
    max_batch: MaxBatch = 2048,
    max_k: MaxK = 1000,
    max_body: MaxBody = 16,
    max_buffered: MaxBuffered = 256,
    timeout: Timeout = 30.0,
    workers: Workers = 4,
    processes: Processes = 1,
    max_waiting: MaxWaiting = 1000,
    max_connections: MaxConnections = 1000,
    silence: Silence = 10.0,
    keep_alive: KeepAlive = 120,
    allowed_host: AllowedHosts = None,
    encoder: Encoders = None,
    max_text: MaxText = 32_768,
    text_cache: TextCache = 64,
    canary_every: CanaryEvery = 300.0,
    texts: TextFile = None,
    kept: KeptFolder = None,
    sidecar: Sidecars = None,
    sidecar_depth: SidecarDepth = 1000,
    as_json: Json = False,
) -> None:
    """Serve embeddings, search and transforms over HTTP, at the version that each reader wants.

    New versions, moved labels and changed consumers are loaded without a restart. The environment
    variable EVERGRAM_ADMIN_TOKEN is the administrator's token.
    """
    if not encoder:
        names = ("max_text", "text_cache", "canary_every")
        refuse_idle(context, names, "is of an encoder of text, and no --encoder is given")
    if not sidecar:
        refuse_idle(context, ["sidecar_depth"], "is of sidecars, and no --sidecar is given")
    from evergram.serving import ServiceSettings, admin_token, listen, listen_processes

    settings = ServiceSettings(
        host=host,
        no_auth=no_auth,
        admin_token=admin_token(),
        max_batch=max_batch,
        max_k=max_k,
        max_body=max_body * MIB,
        timeout=timeout,
        workers=workers,
        max_waiting=max_waiting,
        allowed_hosts=tuple(allowed_host or ()),
        max_buffered=max_buffered * MIB,
        max_connections=max_connections,
        silence=silence,
        keep_alive=keep_alive,
        encoders=tuple(encoder or ()),
        max_text=max_text,
        text_cache=text_cache * MIB,
        canary_every=canary_every,
        texts=texts,
        kept=kept,
        sidecars=tuple(sidecar or ()),
        sidecar_depth=sidecar_depth,
    )
    log_to_stderr()
    stores = stores_by_side(store or ()) or None
    where: dict[str, Any] = {"port": port, "stores": stores, "settings": settings}
    service = (
        listen(lineage, **where)
        if processes == 1
        else listen_processes(lineage, processes, **where)
    )
    with service as server:
        _announce(lineage, server, as_json)
        server.run()


def _announce(lineage: str, server: Server | ServerProcesses, as_json: bool) -> None:
    """Print where the server listens, for people on stderr and as JSON on stdout."""
    write_line("service", server.checked_sentence)
    facts = server.as_json()
    if as_json:
        sys.stdout.write(json.dumps({"lineage": lineage, **facts}) + "\n")
        sys.stdout.flush()
    access = "open to everybody who can reach it" if facts["open"] else "tokens are asked for"
    where = {name: facts[name] for name in ("url", "version", "open")}
    serving = f"Serving version {facts['version']} on {facts['url']} ({access})."
    write_line("service", serving, lineage=lineage, **where)
