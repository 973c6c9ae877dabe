"""The five walks: which files of the package a value passes through.

A file counts if one of its functions is called with the value, or with an object that holds it.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from starlette.testclient import TestClient

import evergram
from evergram.compatibility.transforms import AffineTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.training.recipe import Recipe

PACKAGE = str(Path(evergram.__file__).parent)
COLUMNS = (np.ndarray, torch.Tensor, pa.Array, pa.ChunkedArray, pa.Table, pa.RecordBatch)
# How deep to search inside an argument: 1 searches the attributes of the argument.
DEPTH = 1
# Unusual lengths, so that columns of pairs can be recognised: there are only 40 entities.
PAIRS, BATCH = 1999, 97
# Strengths that need no pilots, and an optimizer that uses gradients.
STEPPED = {
    "task": {"penalty": 1.0, "l2": 0.1},
    "training": {"epochs": 1, "optimizer": "adaptive", "table_rate": 0.1, "batch_size": BATCH},
}


def holds(value: Any, wanted: Callable[[Any], bool], depth: int = DEPTH) -> bool:
    """Return True if `wanted` accepts the value or something inside it."""
    if wanted(value):
        return True
    if not depth or isinstance(value, (str, bytes, int, float, type, *COLUMNS)):
        return False
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(inside, (list, tuple, set)) and not isinstance(value, dict):
        inside = getattr(value, "__dict__", {}).values()
    return any(holds(each, wanted, depth - 1) for each in [*inside][:20])


@contextmanager
def files(wanted: Callable[[Any], bool]) -> Iterator[set[str]]:
    """Collect the package's files whose functions are called with a wanted value."""
    entered: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        name = code.co_filename[len(PACKAGE) + 1 :]
        if name in entered or code.co_name.startswith("<"):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(holds(frame.f_locals.get(each), wanted) for each in arguments):
            entered.add(name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class Arrived(Exception):  # noqa: N818 (not an error: it ends the walk)
    """The value has reached the end of the walk."""


def columns(value: Any) -> bool:
    return isinstance(value, COLUMNS)


def pair_to_gradient(folder: Path) -> set[str]:
    """A pair, from a Parquet file to a gradient."""
    draw = np.random.default_rng(0)
    pairs = {side: draw.integers(0, 40, PAIRS) for side in ("user", "item")}

    def of_pairs(value: Any) -> bool:
        if not columns(value) or getattr(value, "ndim", 1) == 0:
            return False
        return len(value) == BATCH or PAIRS // 2 < len(value) <= PAIRS

    pq.write_table(pa.table(pairs), folder / "pairs.parquet")
    recipe = Recipe.of(
        {
            "data": {
                "kind": "table",
                "path": str(folder / "pairs.parquet"),
                "columns": {"query": "user", "candidate": "item"},
            },
            "model": {"kind": "two_tower", "dim": 6},
            **STEPPED,
        }
    )
    backward = torch.autograd.backward

    def last(*arguments: Any, **options: Any) -> None:
        backward(*arguments, **options)
        raise Arrived

    patched = mock.patch("torch.autograd.backward", last)
    with suppress(Arrived), patched, files(of_pairs) as entered:
        train(recipe, progress=False)
        raise AssertionError("no step was taken")
    return entered


def lineage_of(folder: Path, versions: int) -> Lineage:
    """Publish versions with synthetic vectors, and make the last one the default."""
    lineage = Lineage.create(folder / "lineage", "walk")
    for version in range(versions):
        lineage.publish(artefact(lineage, version), promote=True)
    return lineage


def artefact(lineage: Lineage, version: int) -> Artefact:
    """Return a version of 300 objects; the next version has the same coordinates and one more."""
    dim = 6 + version
    vectors = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))[:, :dim]
    back = AffineTransform.from_matrix(torch.eye(dim - 1, dim), torch.zeros(dim - 1))
    follows = lineage.manifest(version - 1).fingerprint if version else None
    facts = {"version": version, "metrics": {"model": {}}}
    objects = {"object": (pa.array(range(300)), vectors)}
    return Artefact(dim, objects, back if version else None, facts, {}, follows=follows)


def vector_to_answer(folder: Path) -> set[str]:
    """A vector, from the encoder to an HTTP answer at an old version."""
    lineage = lineage_of(folder, versions=1)
    with files(columns) as entered, ExitStack() as opened:
        lineage.publish(artefact(lineage, 1), promote=True)
        app = create_app(Service(folder / "lineage"))
        http = opened.enter_context(TestClient(app, "http://127.0.0.1"))
        answer = http.post("/v1/embeddings", json={"input": ["1"], "version": 0})
    assert answer.status_code == 200, answer.text
    return entered


def rate_to_estimator(folder: Path) -> set[str]:
    """`gramian.rate`, from the recipe to where it acts."""
    rate = 0.0123456789
    recipe = {
        "data": {"kind": "synthetic", "queries": 50, "candidates": 40, "interactions": 500},
        "model": {"dim": 6},
        "gramian": {"rate": rate},
        **STEPPED,
    }

    def wanted(value: Any) -> bool:
        return isinstance(value, float) and value == rate

    with files(wanted) as entered:
        train(Recipe.of(recipe), progress=False)
    return entered


def publication(folder: Path) -> set[str]:
    """`publish(artefact)`."""
    lineage = lineage_of(folder, versions=2)
    published = artefact(lineage, 2)
    with files(lambda value: isinstance(value, (Artefact, *COLUMNS))) as entered:
        lineage.publish(published)
    return entered


def old_search(folder: Path) -> set[str]:
    """A search with an old version's query."""
    reader = Reader.open(lineage_of(folder, versions=3))
    with files(columns) as entered:
        reader.search(np.ones((1, 6), np.float32), 5, version=0)
    return entered


# The maximum number of files per walk.
WALKS = {
    pair_to_gradient: 12,
    vector_to_answer: 14,
    rate_to_estimator: 4,
    publication: 9,
    old_search: 12,
}


def walked() -> dict[str, tuple[set[str], int]]:
    """Return the files of each walk and their limit, by the walk's description."""
    found = {}
    for walk, limit in WALKS.items():
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
            found[(walk.__doc__ or "").rstrip(".")] = walk(Path(folder)), limit
    return found


def table(found: dict[str, tuple[set[str], int]]) -> str:
    """Return a table with the number and names of the files of each walk."""
    rows = ["| walk | files | at most wanted | which |", "|---|---|---|---|"]
    for name, (entered, limit) in found.items():
        files_entered = ", ".join(f"`{file}`" for file in sorted(entered))
        rows.append(f"| {name} | {len(entered)} | {limit} | {files_entered} |")
    return "\n".join(rows)
