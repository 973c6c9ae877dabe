"""An aligner against slow oracles, and under changes that must not matter."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planted_maps import (
    Floats,
    groups_of,
    planted_map,
    ridge_by_rows,
    turn,
    weight_of,
)
from tests.support.publishing import publish_next

from evergram.compatibility import Aligner, Chain, certify
from evergram.compatibility.closed_form_fit import KINDS
from evergram.errors import DataError, ShapeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 10.0))
def test_a_fixed_ridge_is_that_of_least_squares_with_more_rows(seed: int, rho: float) -> None:
    new, old, _ = planted_map(200, 3, 5, seed, noise=1.0)
    kept = ~groups_of(new, 0.2)["held"]
    expected = ridge_by_rows(new[kept], old[kept], rho)
    aligner = Aligner(ridge=rho, held_out=0.2).fit(new, old)
    np.testing.assert_allclose(weight_of(aligner)[:, :5], expected, rtol=1e-7, atol=1e-9)
    assert aligner.report().ridge == rho


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 120), max_size=4),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_blocks_and_their_order_change_nothing(
    kind: str, cuts: list[int], seed: int, shuffled: bool
) -> None:
    new, old, _ = planted_map(120, 3, 4, seed, noise=0.5)
    whole = Aligner(kind).fit(new, old)
    order = np.random.default_rng(seed).permutation(120) if shuffled else np.arange(120)
    parts = Aligner(kind)
    for rows in np.split(order, sorted(cuts)):
        parts.partial_fit(new[rows], old[rows])
    np.testing.assert_allclose(weight_of(parts), weight_of(whole), rtol=1e-7, atol=1e-9)
    one, other = parts.report(), whole.report()
    assert (one.rows, one.held_out_rows) == (other.rows, other.held_out_rows)
    assert one.ridge == pytest.approx(other.ridge, rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_merging_is_associative_and_gives_what_one_fit_gives(kind: str, seed: int) -> None:
    new, old, _ = planted_map(150, 3, 5, seed, noise=0.5)

    def part(i: int) -> Aligner:
        return Aligner(kind).fit(new[i::3], old[i::3])

    left = part(0).merge(part(1)).merge(part(2))
    right = part(0).merge(part(1).merge(part(2)))
    empty = Aligner(kind).merge(Aligner(kind)).merge(right)
    whole = Aligner(kind).fit(new, old)
    for one in (left, right, empty):
        np.testing.assert_allclose(weight_of(one), weight_of(whole), rtol=1e-7, atol=1e-9)
        assert one.report().held_out_rows == whole.report().held_out_rows


def test_merging_changes_no_other_aligner_and_fitting_forgets_earlier_rows() -> None:
    new, old, _ = planted_map(200, 3, 5, noise=1.0)
    other = Aligner().fit(new[:100], old[:100])
    before = other.report()
    Aligner().merge(other).partial_fit(new[100:], old[100:])
    assert other.report() == before
    assert other.fit(new[:100], old[:100]).report() == before  # the rows before are forgotten


def test_a_known_map_of_each_kind_is_recovered() -> None:
    new, old, weight = planted_map(400, 4, 6)
    shifted = old + np.arange(4.0)
    turned = new @ turn(6, 1)[:, :4]
    narrow = weight[:, :2] @ turn(6, 2)[:2]
    cases: list[tuple[Aligner, Floats]] = [
        (Aligner(), old),
        (Aligner("affine"), shifted),
        (Aligner("orthogonal"), turned),
        (Aligner("orthogonal", scaled=True), 3 * turned),
        (Aligner("low_rank", rank=2), new @ narrow.T),
    ]
    for aligner, target in cases:
        aligner.fit(new, target)
        report = aligner.report()
        # An orthogonal map into fewer dims is found by rounds that end at 1e-6 of the power.
        assert report.r2 is not None
        assert report.r2 > 1 - 1e-4, aligner
        assert report.better_than_chance is True
        allowed = 0.05 if aligner.settings.transform == "orthogonal" else 1e-6
        np.testing.assert_allclose(aligner.transform(new), target, rtol=0, atol=allowed)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["linear", "affine", "orthogonal"]), st.integers(0, 10**6))
def test_turning_both_spaces_turns_the_map(kind: str, seed: int) -> None:
    new, _, _ = planted_map(300, 4, 4, seed)
    old = new @ turn(4, seed) + (1.0 if kind == "affine" else 0.0)
    new_turn, old_turn = turn(4, seed + 1), turn(4, seed + 2)
    aligner = Aligner(kind).fit(new, old)
    turned = Aligner(kind).fit(new @ new_turn.T, old @ old_turn.T)
    expected = aligner.transform(new) @ old_turn.T
    np.testing.assert_allclose(turned.transform(new @ new_turn.T), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_random_pairs_are_no_better_than_chance_and_are_warned_of(
    kind: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    draw = np.random.default_rng(seed)
    new, old = draw.normal(size=(400, 6)), draw.normal(size=(400, 5)) + 1.0
    aligner = Aligner(kind).fit(new, old)
    with caplog.at_level(logging.WARNING):
        aligner.transform(new)
    assert aligner.report().better_than_chance is False
    assert "no better than chance" in caplog.text
    # The same rows in another order than the old ones: paired by position, to nonsense.
    same = planted_map(400, 5, 6, seed)[:2]
    assert Aligner(kind).fit(same[0], np.roll(same[1], 1, 0)).report().better_than_chance is False


def test_the_map_forward_is_the_same_with_the_roles_exchanged() -> None:
    new, old, _ = planted_map(400, 5, 5, seed=4)
    forward = Aligner().fit(old, new)
    np.testing.assert_allclose(forward.transform(old), new, atol=1e-5)


def test_an_aligner_becomes_a_link_of_a_chain_and_of_a_lineage(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    newest = draw.normal(size=(500, 6))
    middle = newest @ draw.normal(size=(6, 5)) + 0.2 * draw.normal(size=(500, 5))
    first = middle @ draw.normal(size=(5, 4)) + 0.2 * draw.normal(size=(500, 4))
    links = [Aligner().fit(middle, first), Aligner("affine").fit(newest, middle)]
    chain = Chain([link.as_transform() for link in links], 4)
    walked = links[0].transform(links[1].transform(newest))
    read = chain.apply(torch.from_numpy(newest), 2, 0).numpy()
    np.testing.assert_allclose(read, walked, rtol=1e-4, atol=1e-4)
    known = certify(chain, {i: link.step_error() for i, link in enumerate(links, 1)}, 2, 0)
    assert known is not None
    off = math.sqrt(float(np.square(walked - first).sum(1).mean()))
    assert known.bound >= 0.9 * off
    assert not any(p.requires_grad for p in links[0].as_transform().parameters())

    lineage = Lineage.create(tmp_path / "line", "vectors")
    ids, versions = pa.array(range(500)), (first, middle)
    for number, vectors in enumerate(versions):
        back, error = None, None
        if number:
            back, error = links[0].as_transform(), links[0].step_error()
        block = ids, torch.from_numpy(vectors).float()
        metrics: dict[str, Any] = {"metrics": {"model": {}}}
        publish_next(
            lineage, Artefact(vectors.shape[1], {"object": block}, back, metrics, {}, error=error)
        )
    served = lineage.view(0).embeddings("object")[1]
    np.testing.assert_allclose(served, links[0].transform(middle), rtol=1e-4, atol=1e-4)


def test_rows_that_do_not_fit_are_refused_and_nothing_is_added() -> None:
    new, old, _ = planted_map(200, 3, 5, noise=0.3)
    aligner = Aligner().fit(new, old)
    before = aligner.report()
    spoilt = new.copy()
    spoilt[17, 2] = np.nan
    cases: list[tuple[type[Exception], str, Any, Any]] = [
        (DataError, r"new\[17\] holds NaN or infinity", spoilt, old),
        (DataError, r"old\[0\] holds a number of size 1e\+200", new, old * 0 + 1e200),
        (ShapeError, "new has 200 rows and old 199", new, old[:-1]),
        (ShapeError, "new has 4 dims and old 3; the rows before had 5 and 3", new[:, :4], old),
    ]
    for error, message, bad_new, bad_old in cases:
        with pytest.raises(error, match=message):
            aligner.partial_fit(bad_new, bad_old)
        assert aligner.report() == before
        if "before" not in message:
            with pytest.raises(error, match=message):
                aligner.fit(bad_new, bad_old)
            assert aligner.report() == before
    assert aligner.partial_fit(new[:0], old[:0]).report() == before
    with pytest.raises(DataError, match="no rows"):
        aligner.fit(new[:0], old[:0])
    with pytest.raises(DataError, match="at most 3"):
        Aligner("low_rank", rank=4).fit(new, old)


def test_merging_what_does_not_fit_is_refused() -> None:
    new, old, _ = planted_map(100, 3, 5)
    aligner = Aligner().fit(new, old)
    with pytest.raises(DataError, match="with itself"):
        aligner.merge(aligner)
    with pytest.raises(
        DataError, match=r"Aligner\(transform='linear', ridge=0.5\) cannot be merged"
    ):
        aligner.merge(Aligner(ridge=0.5).fit(new, old))
    with pytest.raises(ShapeError, match="dims 3 and 4"):
        aligner.merge(Aligner().fit(new[:, :4], old))


def test_a_repr_shows_the_settings_alone() -> None:
    assert repr(Aligner()) == "Aligner(transform='linear')"
    shown = "Aligner(transform='low_rank', ridge=0.5, rank=3)"
    assert repr(Aligner("low_rank", 0.5, rank=3)) == shown


def test_what_is_no_aligner_is_not_merged() -> None:
    with pytest.raises(DataError, match="A NoneType cannot be merged into an Aligner"):
        Aligner().merge(None)  # type: ignore[arg-type]


def test_an_error_is_not_measured_on_no_row() -> None:
    new, old, _ = planted_map(60, 3, 4, 0, noise=0.1)
    with pytest.raises(DataError, match="No row was held out to measure the error on"):
        Aligner(held_out=0).fit(new, old).step_error()


def test_the_error_of_another_step_is_refused() -> None:
    steps, errors = [], {}
    for version, (old_dim, new_dim) in enumerate([(3, 4), (4, 5)], start=1):
        new, old, _ = planted_map(400, old_dim, new_dim, version, noise=0.1)
        link = Aligner().fit(new, old)
        steps.append(link.as_transform())
        errors[version] = link.step_error()
    assert certify(Chain(steps, 3), errors, 2, 0) is not None
    with pytest.raises(ShapeError, match=r"errors\[1\] is of 4 dims, and version 0"):
        certify(Chain(steps, 3), {1: errors[2], 2: errors[1]}, 2, 0)


def test_too_few_rows_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    draw = torch.Generator().manual_seed(0)
    new = torch.randn(60, 30, generator=draw)
    few, enough = Aligner("linear").fit(new, new[:, :5]), Aligner("linear").fit(new[:, :4], new)
    with caplog.at_level(logging.WARNING):
        enough.transform(new[:, :4])
        assert "is fitted to" not in caplog.text
        few.transform(new)
        few.transform(new)
    assert few.report().fitted_rows < few.report().rows_needed == 90
    assert caplog.text.count("a linear map from 30 to 5 dims needs 90: add rows") == 1


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 6)])
def test_an_empty_block_of_arrow_adds_nothing_and_maps_to_nothing(kind: pa.DataType) -> None:
    new = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    aligner = Aligner().fit(new, new)
    before = aligner.report()
    none = pa.array([], kind)
    assert aligner.partial_fit(none, none).report() == before
    assert len(aligner.transform(none)) == 0
    with pytest.raises(DataError, match="have no rows"):
        Aligner().fit(none, none)
