"""The model of an upgrade that came too late is kept, and read again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.lineages import vectors_of

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import IntegrityError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.publishing.lost_race import keep_lost


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
