"""Three groups of rows, each in one sum: every row once, and merged by adding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.planted_maps import Floats, groups_of, planted_map

from evergram.compatibility.aligner import grouped_moments
from evergram.compatibility.aligner.grouped_moments import GroupedMoments
from evergram.errors import DataError, ShapeError


def filled(new: Floats, old: Floats, share: float = 0.2) -> GroupedMoments:
    moments = GroupedMoments(old.shape[1], new.shape[1], share)
    moments.add(torch.from_numpy(old), torch.from_numpy(new))
    return moments


def test_each_group_holds_the_moments_of_its_rows() -> None:
    new, old, _ = planted_map(300, 3, 5, noise=0.5)
    moments = filled(new, old)
    groups = groups_of(new, 0.2)
    assert sum(mask.sum() for mask in groups.values()) == moments.rows == 300
    for name, mask in groups.items():
        expected = torch.from_numpy(old[mask].T @ new[mask] / mask.sum())
        torch.testing.assert_close(getattr(moments, name).second()[1], expected)
    assert moments.fitted.count == 300 - moments.held.count
    torch.testing.assert_close(moments.whole.mean_old, torch.from_numpy(old.mean(0)))


def test_parts_that_are_merged_are_the_whole() -> None:
    new, old, _ = planted_map(90, 3, 5)
    new[:4], old[1] = 0.0, 0.0
    whole, merged = filled(new, old), filled(new[:2], old[:2])
    merged.merge(filled(new[2:], old[2:]))
    assert merged.zeros == whole.zeros == (1, 4)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(merged.state_dict()[name], tensor)
    with pytest.raises(ShapeError, match="cannot be merged"):
        merged.merge(GroupedMoments(4, 5, 0.2))


def test_a_state_of_other_dims_or_of_other_tensors_is_refused() -> None:
    state = filled(*planted_map(90, 3, 5)[:2]).state_dict()
    with pytest.raises(DataError, match="have dims 3 and 5; 5 and 3 are needed"):
        GroupedMoments(5, 3, 0.2).load_state_dict(state)
    del state["held.sum"]
    with pytest.raises(DataError, match="not second moments"):
        GroupedMoments(3, 5, 0.2).load_state_dict(state)


def test_held_out_rows_that_repeat_count_once_in_any_division() -> None:
    new, old, _ = planted_map(200, 3, 5)
    objects = int(groups_of(new, 0.2)["held"].sum())
    new, old = np.repeat(new, 3, axis=0), np.repeat(old, 3, axis=0)
    whole, parts = filled(new, old), filled(new[:100], old[:100])
    assert (whole.held_objects, whole.held.count) == (objects, 3 * objects)
    parts.add(torch.from_numpy(old[100:350]), torch.from_numpy(new[100:350]))
    parts.merge(filled(new[350:], old[350:]))
    assert parts.held_objects == objects
    again = GroupedMoments(3, 5, 0.2)
    again.load_state_dict(parts.state_dict())
    again.merge(filled(new, old))
    assert again.held_objects == objects


def test_of_many_held_out_vectors_the_number_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_moments, "KEPT_HASHES", 500)
    new, old, _ = planted_map(40_000, 1, 2)
    objects = int(groups_of(new, 0.2)["held"].sum())
    moments = filled(new, old)
    moments.merge(filled(new[:30_000], old[:30_000]))
    assert moments.hashes is not None
    assert len(moments.hashes) == 500
    # One standard deviation is 1 / √500, 4.5 %.
    assert moments.held_objects == pytest.approx(objects, rel=0.15)
