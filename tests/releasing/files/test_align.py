"""Two files are aligned by what they have in common, and held-out objects stay out of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, id_names, randn
from torch import Tensor

from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.closed_form_fit import fit_closed_form
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import DataError, DegradationError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.files.pair_split import id_hashes, pair_groups
from evergram.releasing.files.past_file import SIDE

ROWS = 400
IDS = id_names(ROWS)


def moments_of(old: Tensor, new: Tensor, mask: Tensor) -> SecondMoments:
    moments = SecondMoments(old.shape[1], new.shape[1])
    moments.add(old[mask], new[mask])
    return moments


@pytest.mark.parametrize("kind", ["linear", "affine", "orthogonal", "low_rank"])
def test_held_out_objects_change_nothing_of_the_transform(tmp_path: Path, kind: str) -> None:
    """Their old vectors are made nonsense; the transform must not know."""
    new = randn(0, ROWS, 8)
    old = new @ randn(1, 8, 5) + randn(2, ROWS, 5)
    held = pair_groups(id_hashes(IDS), 0.2).held
    poisoned = torch.where(held[:, None], 1000 * randn(3, ROWS, 5), old)
    weights = []
    for name, vectors in (("a", old), ("b", poisoned)):
        lineage = Lineage.create(tmp_path / name)
        files = (
            file_of(tmp_path / f"{name}-old.parquet", vectors),
            file_of(tmp_path / "new.npy", new),
        )
        settings = AlignSettings(kind, rank=3 if kind == "low_rank" else None, held_out=0.2)
        report = align(*files, lineage, settings, max_error=math.inf)["alignment"]
        weights.append(lineage.chain.matrix(1, 0))
        assert (report["held_out"]["transformed"]["relative_error"] > 0.9) == (name == "b")
    assert torch.equal(*weights)


def test_from_version_2_on_the_error_counts_at_all_past_versions(tmp_path: Path) -> None:
    """S W C + ρ W = S C', ρ chosen under S: by the library's parts, from the vectors by hand."""
    versions = [100 * randn(0, ROWS, 6)]
    versions.append(versions[0] @ randn(1, 6, 20) / 100 + 3 * randn(2, ROWS, 20))
    versions.append(versions[1] @ randn(3, 20, 25) + 9 * randn(4, ROWS, 25))
    files = [file_of(tmp_path / f"{i}.parquet", v) for i, v in enumerate(versions)]
    lineage = Lineage.create(tmp_path / "l")
    align(files[0], files[1], lineage)
    first = lineage.chain.matrix(1, 0)
    align(files[1], files[2], lineage)
    groups = pair_groups(id_hashes(IDS), 0.1)
    seen = moments_of(versions[1], versions[2], groups.seen)
    chosen = moments_of(versions[1], versions[2], groups.chosen)
    multi = fit_closed_form("linear", seen, chosen, history_metric([first], 6))
    single = fit_closed_form("linear", seen, chosen)
    assert multi.ridge > 0
    matrix = lineage.chain.matrix(2, 1)
    torch.testing.assert_close(matrix, multi.weight, rtol=1e-5, atol=1e-5)
    assert float((matrix - single.weight).norm()) > 1e-3 * float(matrix.norm())


def test_a_file_that_lost_the_seen_objects_goes_on_with_what_is_common(tmp_path: Path) -> None:
    new = randn(0, ROWS, 8)
    lineage = Lineage.create(tmp_path / "l")
    files = [
        file_of(tmp_path / "old.npy", new @ randn(1, 8, 5)),
        file_of(tmp_path / "new.npy", new),
    ]
    align(files[0], files[1], lineage)
    before = lineage.canaries(1)[SIDE][0].to_pylist()
    fewer = file_of(tmp_path / "fewer.npy", 2 * new[100:], IDS[100:])
    align(1, fewer, lineage)
    after = lineage.canaries(2)[SIDE][0].to_pylist()
    assert set(after) == {i for i in before if int(i[2:]) >= 100}


def test_objects_under_several_ids_do_not_measure_themselves(tmp_path: Path) -> None:
    """Without anything to learn, the error of what was not fitted to is about 1 and more."""
    new, old = randn(0, ROWS, 8), randn(1, ROWS, 5)
    new[ROWS // 2 :], old[ROWS // 2 :] = new[: ROWS // 2], old[: ROWS // 2]
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    lineage = Lineage.create(tmp_path / "l")
    settings = AlignSettings(held_out=0.5)
    metrics = align(*files, lineage, settings, max_error=math.inf)
    held = pair_groups(id_hashes(IDS), 0.5).held
    both = held[: ROWS // 2] & held[ROWS // 2 :]
    assert metrics["overlap"]["held_out"] == 2 * int(both.sum()) < int(held.sum())
    assert metrics["alignment"]["held_out"]["transformed"]["relative_error"] > 0.9


def test_few_different_vectors_are_few_however_many_ids_they_have(tmp_path: Path) -> None:
    new, old = randn(0, 10, 8).repeat(40, 1), randn(1, 10, 5).repeat(40, 1)
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    with pytest.raises(DataError, match=r"^10 different new vectors of common obj"):
        align(*files, Lineage.create(tmp_path / "l"), max_error=math.inf)


def test_few_held_out_vectors_under_many_ids_have_no_certificate(tmp_path: Path) -> None:
    """Copies of three texts are three objects, also where a small overlap is allowed."""
    ids = np.array([f"id{i}" for i in range(ROWS)])
    held = pair_groups(id_hashes(pa.array(ids)), 0.1).held.numpy()
    new = randn(0, ROWS, 8)
    new[held] = randn(1, 3, 8)[torch.arange(int(held.sum())) % 3]
    old = new @ randn(2, 8, 5)
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    lineage = Lineage.create(tmp_path / "l")
    settings = AlignSettings(allow_small_overlap=True)
    with pytest.raises(DegradationError, match="measured on 3 objects, and 20 are needed"):
        align(*files, lineage, settings, max_error=0.5)
    metrics = align(*files, lineage, settings, max_error=math.inf)
    assert metrics["alignment"].get("certificate", {}) == {}
    error = lineage.step_errors[1]
    assert (error.objects, error.is_known) == (3, False)
