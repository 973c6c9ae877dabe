"""Stores and the service: addresses, damaged stores, taken ports, hosts, tokens and limits."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.bad_input.case import Case, nothing, put

TAKEN = 48_211


@contextmanager
def port_taken() -> Iterator[None]:
    """Listen on a port for a `with` block."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", TAKEN))
        listening.listen()
        yield


def store(name: str, address: str, says: str, names: str = "", make: Any = nothing) -> Case:
    """Return the case of filling the store at an address."""
    return Case(name, f"fill l --store '{address}'", names or address, says, make)


def serve(name: str, options: str, names: str, says: str, make: Any = nothing, **more: Any) -> Case:
    """Return the case of a service that does not start."""
    return Case(name, f"serve l --port 0 --store object=s {options}", names, says, make, **more)


def edit_store(**changes: Any) -> Any:
    def make(folder: Path) -> None:
        path = folder / "s" / "store.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return make


CASES = [
    store("a store without a side", "s", "?", "--store"),
    store("a side without a store", "object=", "?", "--store"),
    store("a side that the lineage has not", "user=s2", "?", "user"),
    Case("a side twice", "fill l --store object=a --store object=b", "object", "?"),
    Case("no store", "fill l", "--store", "?"),
    store("a store of an unknown kind", "object=redis:host", "?", "redis"),
    store("a store below a file", "object=old.npy/s", "?", "old.npy"),
    store("a store where a file is", "object=old.npy", "?", "old.npy"),
    store("a store in a folder with other files", "object=other", "?", "other", put("x", "other/readme.txt")),
    store("a store whose record is no JSON", "object=s", "?", "s", put("{", "s/store.json")),
    store("a store whose record is empty", "object=s", "?", "s", put("", "s/store.json")),
    store("a store of a later format", "object=s", "?", "s", edit_store(format_version=99)),
    store("a store of another lineage", "object=s", "?", "s", edit_store(lineage="another")) if False else store("a store whose record is a list", "object=s", "?", "s", put("[]", "s/store.json")),
    Case("a store whose rows are damaged", "backfill plan l --store object=s", "s", "?", put("nothing", "s/segments/0.arrow")),
    Case("a store whose rows have gone", "backfill plan l --store object=s", "s", "?", lambda f: (f / "s/segments/0.arrow").unlink()),
    store("a database without a table", "object=postgresql://u@127.0.0.1:9/db", "?", "postgresql"),
    store("a database that nobody listens at", "object=postgresql://u@127.0.0.1:9/db#rows", "?", "127.0.0.1"),
    store("a database's host that does not resolve", "object=postgresql://u@no.such.host.invalid/db#rows", "?", "no.such.host.invalid"),
    store("a database's port that is no number", "object=postgresql://u@127.0.0.1:port/db#rows", "?", "port"),
    store("a database's table of other letters", "object=postgresql://u@127.0.0.1:9/db#my rows", "?", "my rows"),
    store("a Lance store without a table", "object=lance:vectors", "?", "lance:vectors"),
    store("a Qdrant store without a collection", "object=qdrant:q", "?", "qdrant:q"),
    store("a Qdrant server that nobody listens at", "object=qdrant:http://127.0.0.1:9#c", "?", "127.0.0.1"),
    Case("a refresh of a store that is not there", "backfill plan l --store object=gone", "gone", "?"),
    Case("a refresh of two stores", "backfill plan l --store object=s --store object=t", "--store", "?"),
    Case("a refresh without a plan", "backfill apply l --store object=s", "s", "?"),
    Case("a rollback without a plan", "backfill rollback l --store object=s", "s", "?"),
    Case("a batch of no rows", "backfill plan l --store object=s --batch 0", "--batch", "?"),
    Case("no such command of a refresh", "backfill start l", "start", "?"),
    Case("a port that is taken", f"serve l --port {TAKEN} --store object=s", str(TAKEN), "?", during=port_taken),
    Case("a port that is taken, by several processes", f"serve l --port {TAKEN} --store object=s --processes 2", str(TAKEN), "?", during=port_taken),
    Case("a port past 65535", "serve l --port 70000", "70000", "?"),
    Case("a port of text", "serve l --port http", "http", "?"),
    serve("a host that does not resolve", "--host no.such.host.invalid --no-auth", "no.such.host.invalid", "?"),
    serve("a host that is not this machine's", "--host 203.0.113.7 --no-auth", "203.0.113.7", "?"),
    serve("a host for everybody without tokens", "--host 0.0.0.0", "0.0.0.0", "?"),
    serve("an administrator's token that is short", "", "EVERGRAM_ADMIN_TOKEN", "?", process=True, environment={"EVERGRAM_ADMIN_TOKEN": "abc"}),
    serve("an administrator's token with a blank", "", "EVERGRAM_ADMIN_TOKEN", "?", process=True, environment={"EVERGRAM_ADMIN_TOKEN": "a b " * 20}),
    serve("workers none", "--workers 0", "--workers", "?"),
    serve("a timeout of zero", "--timeout 0", "--timeout", "?"),
    serve("a timeout NaN", "--timeout nan", "nan", "?"),
    serve("a batch past what memory holds", "--max-body 99999999999", "--max-body", "?"),
    serve("an allowed host with a scheme", "--allowed-host http://shop.example", "http://shop.example", "?"),
    serve("an encoder of no form", "--encoder minilm", "minilm", "?"),
    Case("a service of no lineage", "serve gone --port 0", "gone", "?"),
    Case("a service of an empty lineage", "serve empty --port 0", "empty", "?", lambda f: (f / "empty").mkdir()),
    Case("a service whose store is not there", "serve l --port 0 --store object=gone", "gone", "?"),
    Case("a service of a side that is not there", "serve l --port 0 --store user=s", "user", "?"),
    Case("a service of a store of a later format", "serve l --port 0 --store object=s", "s", "?", edit_store(format_version=99)),
    Case("a service of a damaged store", "serve l --port 0 --store object=s", "s", "?", put("nothing", "s/segments/0.arrow")),
]
