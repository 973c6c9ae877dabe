"""Lineages: none there, damaged, edited by hand, of a later Evergram, and versions not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.bad_input.case import Case, nothing, put


def damaged(name: str, file: str, content: bytes | str | None, command: str = "") -> Case:
    """Return the case of a file of the lineage `l` that is replaced, or removed by None."""

    def make(folder: Path) -> None:
        path = folder / file
        path.unlink()
        if content is not None:
            put(content, file)(folder)

    return Case(name, command or "vectors export l o.parquet --side object", file, make)


def edited(name: str, file: str, edit: Callable[[Any], object], command: str = "") -> Case:
    """Return the case of a JSON file of the lineage `l` that somebody edits."""

    def make(folder: Path) -> None:
        values = json.loads((folder / file).read_text())
        edit(values)
        (folder / file).write_text(json.dumps(values))

    return Case(name, command or "vectors export l o.parquet --side object", file, make)


def cut(file: str) -> Callable[[Path], object]:
    """Return a function that halves a file."""
    return lambda folder: (folder / file).write_bytes(
        (folder / file).read_bytes()[: (folder / file).stat().st_size // 2]
    )


def asked(name: str, command: str, names: str, make: Callable[[Path], object] = nothing) -> Case:
    return Case(name, command, names, make)


EXPORT = "vectors export l o.parquet --side object"
MANIFEST, STORED = "l/versions/1/manifest.json", "l/embeddings/1/object.parquet"
TRANSFORM = "l/versions/1/transform.safetensors"

CASES = [
    asked("no such lineage", "lineage list gone", "gone"),
    asked("an address of no known scheme as lineage", "lineage list ftp2://host/l", "ftp2"),
    asked("a new lineage over one that is there", "train shop.toml --lineage l", "l"),
    asked("an import over a lineage that is there", "vectors import new.parquet --lineage l", "l"),
    asked("a new lineage where a file is", "train shop.toml --lineage old.npy", "old.npy"),
    asked(
        "a new lineage among other files",
        "train shop.toml --lineage other",
        "readme.txt",
        put("x", "other/readme.txt"),
    ),
    asked(
        "an import among other files",
        "vectors import new.parquet --lineage other",
        "versions",
        put("x", "other/versions/1/mine.txt"),
    ),
    asked(
        "an alignment in a store's folder",
        "vectors align old.parquet new.parquet --lineage s",
        "segments",
    ),
    asked(
        "no record of a lineage",
        "vectors export l o.parquet --side object",
        "no lineage.json",
        lambda folder: (folder / "l/lineage.json").unlink(),
    ),
    damaged("an empty record", "l/lineage.json", b""),
    damaged("a record that is no JSON", "l/lineage.json", b"{"),
    damaged("a record in another encoding", "l/lineage.json", b"\xff\xfe{\0}\0"),
    damaged("a record that is a list", "l/lineage.json", b"[]"),
    damaged("a record nested too deep", "l/lineage.json", b"[" * 100_000),
    edited("a record of a later format", "l/lineage.json", lambda v: v.update(format_version=99)),
    edited(
        "a record of a format of text",
        "l/lineage.json",
        lambda v: v.update(format_version="1"),
    ),
    edited("a record without its check", "l/lineage.json", lambda v: v.pop("check")),
    edited("a manifest edited by hand", MANIFEST, lambda v: v.update(dim=3)),
    damaged("no manifest", MANIFEST, None),
    damaged("an empty manifest", MANIFEST, b""),
    damaged("no transform", TRANSFORM, None, "vectors export l o.parquet --side object --as 0"),
    damaged(
        "another transform",
        TRANSFORM,
        b"x" * 500,
        "vectors export l o.parquet --side object --as 0",
    ),
    asked(
        "metrics cut in half", "lineage check l", "metrics.json", cut("l/versions/1/metrics.json")
    ),
    asked(
        "a canary cut in half",
        "vectors align 1 old.parquet --lineage l",
        "canary.parquet",
        cut("l/versions/1/canary.parquet"),
    ),
    asked("a version that is not there", EXPORT + " --as 7", "7"),
    asked("a negative version", EXPORT + " --as -1", "-1"),
    asked("a side that is not there", "vectors export l o.parquet --side user", "user"),
    asked("an export to an unknown suffix", "vectors export l o.xlsx --side object", "o.xlsx"),
    asked(
        "an export over a file that is there", "vectors export l old.npy --side object", "old.npy"
    ),
    asked("an export over a folder", "vectors export l l --side object", "l"),
    asked(
        "an export into a folder that is not there",
        "vectors export l no/o.parquet --side object",
        "no",
    ),
    asked(
        "a shard past the number of shards",
        "vectors export l o --side object --shards 2 --shard 2/2",
        "Shard 2",
    ),
    asked(
        "a shard of another number",
        "vectors export l o --side object --shards 2 --shard 0/3",
        "0/3",
    ),
    asked(
        "shards into a folder with other files",
        "vectors export l other --side object --shards 2",
        "other",
        put("x", "other/readme.txt"),
    ),
    asked("a label with a blank", "lineage label l 'my label' 0", "my label"),
    asked("a label on no version", "lineage label l gold 9", "9"),
    asked("the removal of a label that is not there", "lineage label l gold --remove", "gold"),
    asked("a label without a version", "lineage label l gold", "version"),
    asked("a promotion of no version", "lineage promote l 9", "9"),
    asked("a withdrawal without a reason", "lineage withdraw l", "--reason"),
    asked("a withdrawal with an empty reason", "lineage withdraw l --reason ''", "reason"),
    asked("a retirement of a version that a consumer is on", "lineage retire l 0", "0"),
    asked("a retirement of the newest version", "lineage retire l 1", "1"),
    asked("an upgrade of a lineage of files", "upgrade shop.toml --lineage l", "l"),
    asked("an alignment of a trained lineage", "vectors align 2 new.parquet --lineage t", "t"),
    asked("an evaluation of a lineage of files", "evaluate l", "l"),
    asked("a diagnosis of a lineage of files", "diagnose l", "l"),
    asked("a diagnosis to no picture", "diagnose t --out o.txt", "o.txt"),
    asked(
        "a diagnosis of fewer steps than measurements",
        "diagnose t --steps 2 --every 10",
        "--every",
    ),
    asked("an evaluation as no version", "evaluate t --as 9", "9"),
    asked("an evaluation whose data has gone", "evaluate t --set data.path=gone.csv", "data.path"),
    asked("a limit of text", "lineage check l --max-error low", "low"),
    asked("a negative limit", "lineage check l --max-error -1", "-1"),
    asked(
        "an export of a transform of no form",
        "vectors export-transform l o --format tensorflow",
        "tensorflow",
    ),
    asked(
        "an export of a transform to no version",
        "vectors export-transform l o --format onnx --as 9",
        "9",
    ),
    asked(
        "an export of a transform over a file",
        "vectors export-transform l old.npy --format onnx --as 0",
        "old.npy",
    ),
    asked(
        "a name in SQL of other letters",
        "vectors export-transform l o.sql --format duckdb --as 0 --name 'a;b'",
        "a;b",
    ),
]
