"""The model of an upgrade that came too late is kept, and read again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.artefacts import artefact, shop_of_three
from tests.support.lineages import vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.publishing.lost_race import keep_lost, read_lost


def test_a_kept_model_with_a_link_out_of_the_folder_is_refused(
    lineage: Lineage, outside: Path
) -> None:
    vectors = vectors_of(0)
    ids = pa.array(range(len(vectors)))
    back = LinearTransform.from_matrix(torch.eye(vectors_of(1).shape[1], vectors.shape[1]))
    kept = keep_lost(
        lineage.work_dir, 2, Artefact(vectors.shape[1], {"object": (ids, vectors)}, back, {}, {})
    )
    assert lineage.lost().manifest.version == 2
    (kept / "more").symlink_to(outside / "own")
    with pytest.raises(IntegrityError, match="symbolic link"):
        lineage.lost()


def test_the_kept_model_is_the_one_that_was_trained(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    keep_lost(work, 3, artefact(2))
    keep_lost(work, 4, artefact(3, 2, seed=1))
    lost = read_lost(tmp_path, work, "shop")
    assert (lost.manifest.version, lost.manifest.name) == (4, "lost@v4")
    published = artefact(3, 2, seed=1).block("query")[1]
    assert torch.equal(lost.encoder()[1]["query.weight"], published)
    assert lost.moments() == {}


def test_without_a_kept_model_the_error_says_when_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(LineageError, match=r"No model is kept for shop: .*leave out --kept"):
        read_lost(tmp_path, tmp_path / ".work", "shop")


def test_a_kept_model_outlives_other_publications_and_is_forgotten_by_name(tmp_path: Path) -> None:
    lineage = shop_of_three(tmp_path / "shop")
    lineage.forget_lost()  # there is none
    keep_lost(lineage.work_dir, 3, artefact(3, 2, seed=1))
    publish_next(lineage, artefact(5, 4))
    assert lineage.lost().manifest.version == 3
    lineage.forget_lost()
    with pytest.raises(LineageError, match="No model is kept"):
        lineage.lost()
