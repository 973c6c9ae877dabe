"""A version is published whole or not at all, and only if it can be read again."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.artefacts import artefact, shop_of_three
from tests.support.dying import is_alone
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.lineages import lineage_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    DataError,
    LineageError,
    ShapeError,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 and 1."""
    return exact_lineage(tmp_path / "lineage")


def test_a_vector_that_is_not_finite_is_not_published(lineage: Lineage) -> None:
    broken = exact_version(2, 1)
    broken.block(SIDE)[1][3, 0] = float("nan")
    with pytest.raises(DataError, match=r"object embedding of id 'id3' has a NaN"):
        publish_next(lineage, broken)
    wide = exact_version(2, 1)
    ids, vectors = wide.block(SIDE)
    # A number, but none that can be written as float32.
    wide = replace(wide, embeddings={SIDE: (ids, vectors.double() * 1e300)})
    with pytest.raises(DataError, match=r"object embedding of id 'id0' has a NaN or an inf"):
        publish_next(lineage, wide)
    assert Lineage.open(lineage.path).newest == 1
    assert publish_next(lineage, exact_version(2, 1)) == 2


def test_without_the_file_before_only_the_forward_map_is_missing(lineage: Lineage) -> None:
    path = lineage.stored(SIDE)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    publish_next(lineage, exact_version(2, 1))
    assert lineage.forward(1, 2) is None
    assert lineage.forward(0, 1) is not None


def test_a_side_without_a_proper_name_is_not_published(lineage: Lineage) -> None:
    vectors = lineage.embeddings("object")
    back = lineage.chain.transforms[0]
    wide = Artefact(10, {"../x": vectors}, back, {"metrics": {"model": {}}}, {})
    with pytest.raises(LineageError, match="cannot be the name of a side"):
        publish_next(lineage, wide)


@pytest.mark.parametrize(
    "metrics",
    [{"metrics": []}, {"metrics": {"model": {"a": "x"}}}, {"probes": [1]}, {"probes": {}}],
)
def test_metrics_of_another_form_are_not_published(
    lineage: Lineage, metrics: dict[str, Any]
) -> None:
    vectors = lineage.embeddings("object")
    artefact = Artefact(
        8, {"object": vectors}, LinearTransform.from_matrix(torch.eye(8)), metrics, {}
    )
    with pytest.raises(DataError, match="nothing was published"):
        lineage.publish(artefact)
    assert Lineage.open(lineage.path).newest == 1


def test_ids_of_another_type_are_refused_before_training(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "numbers", versions=1)
    lineage.check_ids({"object": pa.array(["7"]), "another": pa.array(["x"])})
    with pytest.raises(DataError, match=r"The object ids in .* are integers"):
        lineage.check_ids({"object": pa.array(["x"])})


def test_an_artefact_that_names_no_predecessor_is_refused(lineage: Lineage) -> None:
    with pytest.raises(LineageError, match=r"does not say which version .* follows=lineage"):
        lineage.publish(exact_version(2, 1))
    assert Lineage.open(lineage.path).newest == 1


def test_a_version_takes_a_transform_from_its_own_dim_to_the_one_before(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "new")
    with pytest.raises(ShapeError, match="Version 0 has no version before it and takes no"):
        publish_next(lineage, artefact(3, 2))
    assert not lineage.path.exists()


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


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
    publish_next(Lineage.open(path), artefact(5, 4, seed=3))
    os._exit(0)


def test_a_transform_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    lineage = shop_of_three(tmp_path / "shop")
    before = contents(lineage.path)
    with pytest.raises(ShapeError, match=r"\(4, 5\)"):
        publish_next(lineage, artefact(5, 3))
    with pytest.raises(ShapeError, match="Version 3 needs"):
        publish_next(lineage, artefact(5))
    assert contents(lineage.path) == before


@pytest.mark.long
def test_death_at_any_moment_of_a_publication_leaves_the_lineage_whole(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not is_alone(request):
        return
    lineage = shop_of_three(tmp_path / "shop")
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
            assert publish_next(reopened, artefact(5, 4, seed=3)) == 3
        assert Lineage.open(copy).view(0).embeddings("query")[1].shape == (3, 2)
        assert not list(copy.rglob(".*.part"))
    assert died > 10


def test_a_publication_against_an_older_state_is_refused(tmp_path: Path) -> None:
    lineage = shop_of_three(tmp_path / "shop")
    stale = Lineage.open(lineage.path)
    publish_next(lineage, artefact(5, 4))
    before = contents(lineage.path)
    with pytest.raises(LineageError, match="newest version is 3"):
        publish_next(stale, artefact(6, 4))
    with pytest.raises(LineageError, match="open it again"):
        stale.embeddings("query")
    after = contents(lineage.path)
    # Beside the lineage the model that came too late is after; see test_nothing_silent.
    assert {k: v for k, v in after.items() if not k.startswith(".work/lost/")} == before
