"""The command that serves a lineage."""

from __future__ import annotations

import json
import sys
from typing import Any

from evergram.cli.app import run
from evergram.cli.options import command, described, stores_by_side
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.log_lines import log_to_stderr, write_line

# The minimum of each limit that `--set` can change.
LIMITS = {
    "max_batch": 1,
    "max_k": 1,
    "max_body": 1,
    "max_buffered": 1,
    "timeout": 0.001,
    "workers": 1,
    "max_waiting": 0,
    "max_connections": 1,
    "silence": 0.1,
    "keep_alive": 1,
    "max_text": 1,
    "text_cache": 0,
    "canary_every": 1,
    "sidecar_depth": 1,
}
IN_SECONDS = ("timeout", "silence", "keep_alive", "canary_every")
IN_MEBIBYTES = ("max_body", "max_buffered", "text_cache")


@command(
    "serve",
    "lineages/shop --port 8000",
    host="Address to listen on; without tokens, it must be a loopback address.",
    port=described("Port to listen on; 0 chooses a free one.", min=0, max=65_535),
    store=described(
        "SIDE=ADDRESS | Store of a side's embeddings (default: snapshots in DIR/stores); "
        "repeatable. Put a database's password into PGPASSWORD or ~/.pgpass."
    ),
    no_auth="Let everybody read everything, on any address.",
    set_="LIMIT=NUMBER | Set a limit of the service (docs/serving.md), such as timeout=60; "
    "repeatable.",
    allowed_host="NAME | A host name that requests may use: shop.example, *.example, or * for any "
    "(default: localhost, or any if tokens are needed); repeatable.",
    encoder="ADDRESS | Encode strings with this text encoder (docs/text.md) if the version records "
    "it; 'recorded' allows every recorded encoder except python: and openai:; repeatable.",
    texts="FILE | Ids and texts (columns id and text) of the stored objects, so that searches can "
    "re-rank with --encoder.",
    kept="DIR | Folder for saving the vectors that re-ranking computes (default: only in memory).",
    sidecar="FILE|DIR | A file from 'evergram vectors sidecar' for reading objects as the previous "
    "version, or a folder of such files, which is watched for new ones; repeatable.",
)
def serve(
    lineage: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    store: list[str] | None = None,
    no_auth: bool = False,
    set_: list[str] | None = None,
    allowed_host: list[str] | None = None,
    encoder: list[str] | None = None,
    texts: str | None = None,
    kept: str | None = None,
    sidecar: list[str] | None = None,
) -> None:
    """Serve embeddings, search and transforms over HTTP, at the version that each client needs.

    New versions, moved labels and changed consumers are loaded without a restart. The environment
    variable EVERGRAM_ADMIN_TOKEN is the administrator's token.
    """
    from evergram.serving import ServiceSettings, listen
    from evergram.serving.settings import admin_token

    settings = ServiceSettings(
        host=host,
        no_auth=no_auth,
        admin_token=admin_token(),
        allowed_hosts=tuple(allowed_host or ()),
        encoders=tuple(encoder or ()),
        texts=texts,
        kept=kept,
        sidecars=tuple(sidecar or ()),
        **limits_of(set_),
    )
    log_to_stderr()
    stores = stores_by_side(store or ()) or None
    where: dict[str, Any] = {"port": port, "stores": stores, "settings": settings}
    with listen(lineage, **where) as server:
        facts = server.as_json()
        if run.json:
            sys.stdout.write(json.dumps({"lineage": lineage, **facts}) + "\n")
            sys.stdout.flush()
        access = "open to everybody who can reach it" if facts["open"] else "tokens are needed"
        serving = f"Serving version {facts['version']} on {facts['url']} ({access})."
        write_line("service", serving, lineage=lineage, **facts)
        server.run()


def limits_of(options: list[str] | None) -> dict[str, Any]:
    """Return the settings that `--set LIMIT=NUMBER` sets."""
    limits: dict[str, Any] = {}
    for option in options or ():
        name, _, text = option.partition("=")
        if name not in LIMITS:
            hint = did_you_mean(name, LIMITS) or f"; the limits are: {', '.join(LIMITS)}"
            raise DataError(f"--set {option}: {name!r} is not a limit of the service{hint}.")
        try:
            number = float(text) if name in IN_SECONDS else int(text)
        except ValueError:
            number = float("nan")
        if not number >= LIMITS[name]:
            kind = "a number" if name in IN_SECONDS else "an integer"
            raise DataError(f"--set {option}: it must be {kind} ≥ {LIMITS[name]}.")
        limits[name] = number * 2**20 if name in IN_MEBIBYTES else number
    return limits
