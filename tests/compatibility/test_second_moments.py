"""Second moments: one pass over pairs against sums written out; adding, merging, removing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.support.thread_processes import in_threads
from torch import Tensor

from evergram.compatibility.second_moments import PANEL, SecondMoments
from evergram.errors import DataError, ShapeError

SEEDS = st.integers(0, 10**6)


def pairs(seed: int, rows: int, old_dim: int, new_dim: int) -> tuple[Tensor, Tensor]:
    """Old [rows, old_dim] and new [rows, new_dim], float64, correlated, with means."""
    draw = torch.Generator().manual_seed(seed)
    new = torch.randn(rows, new_dim, generator=draw, dtype=torch.float64) + 0.7
    mix = torch.randn(new_dim, old_dim, generator=draw, dtype=torch.float64)
    noise = torch.randn(rows, old_dim, generator=draw, dtype=torch.float64)
    return new @ mix + 0.3 * noise - 0.4, new


def moments_of(old: Tensor, new: Tensor) -> SecondMoments:
    moments = SecondMoments(old.shape[1], new.shape[1])
    moments.add(old, new)
    return moments


def same(one: SecondMoments, other: SecondMoments, rtol: float = 1e-10) -> None:
    assert one.count == other.count
    torch.testing.assert_close(one.mean_old, other.mean_old, rtol=rtol, atol=1e-12)
    torch.testing.assert_close(one.mean_new, other.mean_new, rtol=rtol, atol=1e-12)
    for mine, yours in zip(one.second(), other.second(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=rtol, atol=1e-11)


# Dims on both sides of a panel's edge.
@pytest.mark.parametrize(("old_dim", "new_dim"), [(3, 5), (4, 1), (PANEL - 1, 3), (2, PANEL + 9)])
def test_moments_are_the_sums_written_out(old_dim: int, new_dim: int) -> None:
    old, new = pairs(0, 7, old_dim, new_dim)
    moments = moments_of(old, new)
    assert moments.count == 7
    new_new, cross, old_old = moments.second()
    torch.testing.assert_close(new_new, sum(z[:, None] * z for z in new) / 7)
    torch.testing.assert_close(
        cross, sum(y[:, None] * z for y, z in zip(old, new, strict=True)) / 7
    )
    torch.testing.assert_close(old_old, sum(y[:, None] * y for y in old) / 7)
    torch.testing.assert_close(moments.mean_old, old.mean(0))
    torch.testing.assert_close(moments.mean_new, new.mean(0))
    about = moments.second(centred=True)
    both = torch.cat([new, old], dim=1).T.cov(correction=0)
    torch.testing.assert_close(about[0], both[:new_dim, :new_dim])
    torch.testing.assert_close(about[1], both[new_dim:, :new_dim])
    torch.testing.assert_close(about[2], both[new_dim:, new_dim:])
    assert moments.power == pytest.approx(float(old.square().sum(1).mean()))


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_shards_add_up(seed: int, sizes: list[int]) -> None:
    old, new = pairs(seed, sum(sizes) + 1, 3, 4)
    whole = moments_of(old, new)
    merged = moments_of(old[-1:], new[-1:])
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        merged.merge(moments_of(old[part], new[part]))
        start += size
    same(merged, whole)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 8), st.integers(1, 8))
def test_a_record_that_is_removed_was_never_there(seed: int, kept: int, gone: int) -> None:
    old, new = pairs(seed, kept + gone, 3, 4)
    moments = moments_of(old, new)
    moments.remove(old[kept:], new[kept:])
    same(moments, moments_of(old[:kept], new[:kept]), rtol=1e-8)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.booleans())
def test_errors_need_no_vectors(seed: int, with_offset: bool) -> None:
    old, new = pairs(seed, 9, 3, 4)
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    offset = torch.randn(3, generator=draw, dtype=torch.float64) if with_offset else None
    root = torch.randn(3, 3, generator=draw, dtype=torch.float64)
    metric = torch.eye(3, dtype=torch.float64) + root.T @ root
    delta = torch.stack(
        [weight @ z + (0 if offset is None else offset) - y for y, z in zip(old, new, strict=True)]
    )
    moments = moments_of(old, new)
    sigma = torch.stack([d[:, None] * d for d in delta]).mean(0)
    torch.testing.assert_close(moments.sigma(weight, offset), sigma, rtol=1e-9, atol=1e-9)
    assert moments.error(weight, offset) == pytest.approx(float(delta.square().sum(1).mean()))
    weighed = torch.stack([d @ metric @ d for d in delta]).mean()
    assert moments.error(weight, offset, metric) == pytest.approx(float(weighed))


@pytest.mark.parametrize("metric", [None, torch.eye(3)])
def test_the_error_of_a_map_that_is_no_number_is_no_number(metric: Tensor | None) -> None:
    """An error of 0 would be the best of all."""
    moments = SecondMoments(3, 2)
    moments.add(torch.randn(9, 3), torch.randn(9, 2))
    weight = torch.zeros(3, 2)
    assert moments.error(weight, metric=metric) > 0
    weight[1, 1] = float("nan")
    assert math.isnan(moments.error(weight, metric=metric))


def test_floats_of_any_size_are_summed_in_float64() -> None:
    # 1 + 2⁻³⁰ is not a float32.
    moments = SecondMoments(1, 1)
    moments.add(torch.ones(1, 1), torch.ones(1, 1))
    small = torch.full((1, 1), 2.0**-15)
    moments.add(small, small)
    assert float(moments.second()[0]) * 2 - 1 == 2.0**-30


@pytest.mark.parametrize("merged", [False, True])
def test_a_long_file_loses_nothing_beside_its_means(merged: bool) -> None:
    """Two thousand blocks; what is added to a large sum is rounded, always the same way here."""
    draw = torch.Generator().manual_seed(0)
    moments, spread = SecondMoments(1, 2), []
    for _ in range(2000):
        new = torch.full((50, 2), 1000.1, dtype=torch.float64)
        spread.append(1e-3 * torch.randn(50, generator=draw, dtype=torch.float64))
        new[:, 0] += spread[-1]
        if merged:
            moments.merge(moments_of(new[:, :1], new))
        else:
            moments.add(new[:, :1], new)
    covariance = moments.second(centred=True)[0]
    expected = float(torch.cat(spread).var(correction=0))  # 1e-6, where the squares are 1e6
    assert float(covariance[0, 0]) == pytest.approx(expected, rel=1e-3)
    assert abs(float(covariance[1, 1])) < 1e-8


def test_swapped_they_are_those_of_the_way_forward() -> None:
    old, new = pairs(3, 8, 2, 5)
    same(moments_of(old, new).swapped(), moments_of(new, old))


def test_moments_read_from_a_file_go_on(tmp_path: Path) -> None:
    old, new = pairs(1, 8, 2, 5)
    moments = moments_of(old[:5], new[:5])
    moments.save(tmp_path / "moments.safetensors")
    again = SecondMoments.load(tmp_path / "moments.safetensors")
    again.add(old[5:], new[5:])
    same(again, moments_of(old, new))
    assert [p.name for p in tmp_path.iterdir()] == ["moments.safetensors"]


def test_pairs_matrices_and_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    old, new = pairs(0, 4, 2, 3)
    moments = moments_of(old, new)
    with pytest.raises(ShapeError, match="same b objects"):
        moments.add(old[:3], new)
    with pytest.raises(ShapeError, match=r"\[b, 2\]"):
        moments.add(new, new)
    with pytest.raises(ShapeError, match="merged"):
        moments.merge(SecondMoments(3, 2))
    with pytest.raises(ShapeError, match="need \\[2, 3\\]"):
        moments.sigma(torch.eye(2))
    with pytest.raises(DataError, match="only 4 were ever added"):
        moments.remove(old.repeat(2, 1), new.repeat(2, 1))
    with pytest.raises(DataError, match="no pairs"):
        SecondMoments(2, 2).second()
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(DataError, match="cannot be read"):
        SecondMoments.load(tmp_path / "text")
    save_file({"weight": torch.eye(2)}, tmp_path / "other")
    with pytest.raises(DataError, match="not second moments"):
        SecondMoments.load(tmp_path / "other")


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 30), st.integers(1, 4))
def test_processes_sum_what_each_has_added(seed: int, rows: int, size: int) -> None:
    old, new = pairs(seed, rows, 3, 2)
    mine = [slice(rank, None, size) for rank in range(size)]
    results, _ = in_threads(
        size, lambda p: moments_of(old[mine[p.rank]], new[mine[p.rank]]).summed(p)
    )
    for summed in results:
        same(summed, moments_of(old, new))
        assert torch.equal(summed.second()[1], results[0].second()[1])
