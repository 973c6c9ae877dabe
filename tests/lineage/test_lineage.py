"""A lineage on disk: whole or not there, and what was published or an error."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.artefacts import artefact, shop_of_three
from tests.support.dying import is_alone

from evergram.errors import (
    LineageError,
    ShapeError,
    UnknownVersionError,
)
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def test_what_was_published_is_read_back(lineage: Lineage) -> None:
    again = Lineage.open(lineage.path)
    assert [(m.version, m.dim, m.name) for m in again.versions] == [
        (0, 2, "shop@v0"),
        (1, 3, "shop@v1"),
        (2, 4, "shop@v2"),
    ]
    published = artefact(4, 3, seed=2)
    ids, vectors = again.embeddings("candidate")
    assert ids.equals(published.block("candidate")[0])
    assert torch.equal(vectors, published.block("candidate")[1])
    record, state, vocabularies = again.encoder_parts(1)
    assert record.kind == "factorization"
    assert torch.equal(state["query.weight"], artefact(3, 2, seed=1).block("query")[1])
    assert vocabularies["candidate.id"].keys.equals(pa.array([10, 20]))
    assert again.metrics(0) == {"metrics": {"model": {"recall@20": 0.5}}}
    canary = pq.read_table(again.path / "versions" / "0" / "canary.parquet")
    assert canary["id"].to_pylist() == ["a", "10"]


def test_only_the_newest_embeddings_are_stored(lineage: Lineage) -> None:
    assert [p.name for p in (lineage.path / "embeddings").iterdir()] == ["2"]


def test_what_is_not_there_is_said(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="its versions are: 0, 1, 2"):
        lineage.view(3)
    with pytest.raises(LineageError, match="no side 'item'"):
        lineage.embeddings("item")
    with pytest.raises(LineageError, match="not a lineage"):
        Lineage.open(tmp_path)
    with pytest.raises(LineageError, match="already holds"):
        Lineage.create(lineage.path)
    with pytest.raises(UnknownVersionError, match="no version yet"):
        _ = Lineage.create(tmp_path / "new").newest
    assert not (tmp_path / "new").exists()


def test_a_transform_that_does_not_fit_is_refused(lineage: Lineage) -> None:
    before = contents(lineage.path)
    with pytest.raises(ShapeError, match=r"\(4, 5\)"):
        lineage.publish(artefact(5, 3))
    with pytest.raises(ShapeError, match="Version 3 needs"):
        lineage.publish(artefact(5))
    assert contents(lineage.path) == before


def _die_at(call: int, path: Path) -> None:
    """Publish, and die without a word at the given system call that changes a name or syncs."""
    left = call

    def counted(real: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return real(*args, **kwargs)

        return wrapper

    for name in ("rename", "replace", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    Lineage.open(path).publish(artefact(5, 4, seed=3))
    os._exit(0)


@pytest.mark.long
def test_death_at_any_moment_of_a_publication_leaves_the_lineage_whole(
    lineage: Lineage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not is_alone(request):
        return
    before = contents(lineage.path)
    context = multiprocessing.get_context("fork")
    died = 0
    for call in range(100):
        copy = tmp_path / f"copy{call}"
        shutil.copytree(lineage.path, copy)
        process = context.Process(target=_die_at, args=(call, copy))
        process.start()
        process.join()
        reopened = Lineage.open(copy)
        if process.exitcode == 0:
            assert reopened.newest == 3
            break
        died += 1
        assert reopened.newest in (2, 3)
        if reopened.newest == 2:
            left = contents(copy)
            assert {k: left[k] for k in before} == before
            # The next publication clears away what was left and succeeds.
            assert reopened.publish(artefact(5, 4, seed=3)) == 3
        assert Lineage.open(copy).view(0).embeddings("query")[1].shape == (3, 2)
        assert not list(copy.rglob(".*.part"))
    assert died > 10


def test_a_publication_against_an_older_state_is_refused(lineage: Lineage) -> None:
    stale = Lineage.open(lineage.path)
    lineage.publish(artefact(5, 4))
    before = contents(lineage.path)
    with pytest.raises(LineageError, match="newest version is 3"):
        stale.publish(artefact(6, 4))
    with pytest.raises(LineageError, match="open it again"):
        stale.embeddings("query")
    after = contents(lineage.path)
    # Beside the lineage the model that came too late is after; see test_nothing_silent.
    assert {k: v for k, v in after.items() if not k.startswith(".work/lost/")} == before
