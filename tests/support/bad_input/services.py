"""What `evergram serve` refuses: addresses, limits, tokens, lineages, stores and encoders."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tests.support.bad_input.case import Case, nothing, put
from tests.support.bad_input.conditions import (
    CUT,
    PORT,
    all_of,
    answering,
    environment,
    no_answer,
    patched,
    read_only,
    taken_port,
)


def served(
    name: str,
    options: str,
    names: str,
    make: Callable[[Path], object] = nothing,
    during: Callable[[], AbstractContextManager[Any]] = nullcontext,
    lineage: str = "l --port 0",
) -> Case:
    """Return the case of serving the lineage `l`, or another, with these options."""
    return Case(name, f"serve {lineage} {options}", names, make, all_of(no_answer, during))


def of(name: str, lineage: str, names: str, make: Callable[[Path], object] = nothing) -> Case:
    """Return the case of serving this lineage."""
    return served(name, "", names, make, lineage=f"{lineage} --port 0")


def damaged(name: str, file: str, content: bytes | None, options: str = "") -> Case:
    """Return the case of a file of `l`, or of the store `s`, that has other bytes, or is gone."""

    def make(folder: Path) -> None:
        (folder / file).unlink()
        if content is not None:
            put(content, file)(folder)

    return served(name, options, file.rpartition("/")[2], make)


def not_permitted(*_: object) -> None:
    """Refuse as the system does where a user may not do something."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


BUCKET = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
    "EVERGRAM_CACHE": "cache",
}
ANYWHERE = "--no-auth --host"
CASES = [
    served("a port that is taken", "", str(PORT), nothing, taken_port, f"l --port {PORT}"),
    served(
        "a port that only root may use",
        "",
        "127.0.0.1:80",
        nothing,
        patched("socket.socket.bind", not_permitted),
        "l --port 80",
    ),
    served("a port past 65535", "", "70000", lineage="l --port 70000"),
    served("a negative port", "", "-1", lineage="l --port -1"),
    served("a port that is a word", "", "http", lineage="l --port http"),
    served("a host that nobody knows", f"{ANYWHERE} no.such.host.invalid", "no.such.host.invalid"),
    served("an empty host", f"{ANYWHERE} ''", "--host"),
    served("open to all without a token", "--host 0.0.0.0", "no consumer has a token"),
    served(
        "a token of the administrator with a blank",
        "",
        "EVERGRAM_ADMIN_TOKEN",
        nothing,
        environment(EVERGRAM_ADMIN_TOKEN="two words"),
    ),
    served("an allowed host that is an address", "--allowed-host http://shop", "http://shop"),
    served("a timeout without end", "--timeout inf", "--timeout"),
    served("a silence that is no number", "--silence nan", "--silence"),
    of("a service of no lineage", "gone", "gone"),
    of("a service of a file", "shop.toml", "shop.toml"),
    of("a service of an unknown address", "ftp2://host/l", "ftp2"),
    damaged("a service of an empty record", "l/lineage.json", b""),
    damaged("a service of a damaged record", "l/lineage.json", b"{"),
    damaged("a service of damaged consumers", "l/consumers.json", b"{"),
    damaged("a service of a damaged manifest", "l/versions/1/manifest.json", b"{}"),
    damaged("a service without a manifest", "l/versions/1/manifest.json", None),
    damaged("a service without a transform", "l/versions/1/transform.safetensors", None),
    damaged("a service of damaged vectors", "l/embeddings/1/object.parquet", b"PAR1 PAR1"),
    served("a store without a side", "--store s", "--store"),
    served("a store of an unknown side", "--store user=s", "'user'"),
    served("a store of a side twice", "--store object=s --store object=s", "object"),
    served("a store of an unknown kind", "--store object=redis:host#t", "redis"),
    served("a served store that is not there", "--store object=gone", "gone"),
    served(
        "a store of two processes that is not there", "--processes 2 --store object=gone", "gone"
    ),
    served("a served store of another lineage", "--store candidate=s", "s", lineage="t --port 0"),
    damaged("a served store with a damaged record", "s/store.json", b"{", "--store object=s"),
    damaged("a served store with damaged rows", "s/segments/0.arrow", b"x", "--store object=s"),
    damaged("a served store without its rows", "s/segments/0.arrow", None, "--store object=s"),
    served("a served database that is off", "--store object=postgresql://me@127.0.0.1:9/d#t", ":9"),
    served("a served Qdrant that is off", "--store object=qdrant:http://127.0.0.1:9#t", ":9"),
    served("a served LanceDB that is not there", "--store object=lance:gone#t", "gone"),
    served(
        "a store of the service that is a file",
        "",
        "l/stores",
        lambda f: (f / "l/stores").write_text("x"),
    ),
    served(
        "a store of the service with other files",
        "",
        "l/stores/object",
        put("x", "l/stores/object/segments/readme.txt"),
    ),
    served(
        "a store of the service that is damaged",
        "",
        "l/stores/object",
        lambda f: (
            shutil.copytree(f / "s", f / "l/stores/object"),
            (f / "l/stores/object/store.json").write_text("{"),
        ),
    ),
    served("a lineage that cannot be written", "", "l/stores", nothing, read_only("l")),
    served("an encoder of the service of an unknown kind", "--encoder word2vec:x", "word2vec"),
    served("an encoder of the service of nothing", "--encoder model2vec:", "model2vec"),
    served("texts without an encoder", "--texts texts.csv", "--encoder"),
    served("kept vectors without texts", "--kept k", "--texts"),
    served(
        "texts of the service that are not there",
        "--encoder python:evergram.texts.canaries:letters --texts gone.csv",
        "gone.csv",
    ),
    served(
        "texts of the service without a column",
        "--encoder python:evergram.texts.canaries:letters --texts bad.csv",
        "bad.csv",
        put("id,body\n1,a\n", "bad.csv"),
    ),
    served("no folder of a lineage", "", "", lineage="--port 0"),
    served(
        "a lineage in a bucket that is cut off",
        "",
        "s3://shop/l",
        nothing,
        all_of(answering(CUT, "AWS_ENDPOINT_URL"), environment(**BUCKET)),
        "s3://shop/l --port 0",
    ),
]
