"""An aligner against slow oracles, and under changes that must not matter."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
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
from evergram.compatibility.aligner import aligner as arrays
from evergram.compatibility.aligner import solution
from evergram.compatibility.aligner.aligner_file import KEY, content_digest
from evergram.compatibility.closed_forms import KINDS, RIDGES
from evergram.compatibility.kinds import TRANSFORMS
from evergram.errors import DataError, IntegrityError, ShapeError
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
        (DataError, r"new\[17\]", spoilt, old),
        (DataError, r"old\[0\]", new, old * 0 + 1e200),
        (ShapeError, "200 rows and old 199", new, old[:-1]),
        (ShapeError, "4 dims and old 3", new[:, :4], old),
    ]
    for error, named, bad_new, bad_old in cases:
        with pytest.raises(error, match=named):
            aligner.partial_fit(bad_new, bad_old)
        assert aligner.report() == before
    assert aligner.partial_fit(new[:0], old[:0]).report() == before
    with pytest.raises(DataError, match="no rows"):
        aligner.fit(new[:0], old[:0])
    with pytest.raises(DataError, match="at most 3"):
        Aligner("low_rank", rank=4).fit(new, old)


def test_an_error_is_not_measured_on_no_row() -> None:
    new, old, _ = planted_map(60, 3, 4, 0, noise=0.1)
    with pytest.raises(DataError, match="No row was held out to measure the error"):
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
    assert caplog.text.count("kind linear from 30 to 5 dims needs 90: add rows") == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_ridge_is_the_one_that_errs_least_on_rows_not_fitted_to(seed: int) -> None:
    """Every ridge is tried by least squares, and its error summed row by row."""
    new, old, _ = planted_map(60, 4, 20, seed, noise=6.0)
    rows = groups_of(new, 0.1)
    seen, chosen = rows["seen"], rows["chosen"]
    unit = float(np.square(new[seen]).sum(1).mean()) / 20
    errors = {}
    for share in RIDGES:
        weight = ridge_by_rows(new[seen], old[seen], share * unit)
        errors[share * unit] = sum(
            float(np.square(weight @ z - y).sum())
            for z, y in zip(new[chosen], old[chosen], strict=True)
        )
    best = min(errors, key=lambda rho: errors[rho])
    aligner = Aligner().fit(new, old)
    assert aligner.report().ridge == pytest.approx(best, rel=1e-9)
    assert best > 0
    expected = ridge_by_rows(new[~rows["held"]], old[~rows["held"]], best)
    np.testing.assert_allclose(weight_of(aligner)[:, :20], expected, rtol=1e-6, atol=1e-8)


def test_held_out_rows_change_nothing_of_the_map() -> None:
    new, old, _ = planted_map(300, 3, 5, noise=0.5)
    held = groups_of(new, 0.1)["held"]
    nonsense = np.where(held[:, None], 1000.0, old)
    one, other = Aligner().fit(new, old), Aligner().fit(new, nonsense)
    assert np.array_equal(one.transform(new), other.transform(new))
    assert one.report().r2 != other.report().r2


def test_too_few_rows_are_refused_when_the_map_is_wanted() -> None:
    new, old, _ = planted_map(40, 3, 5)
    with pytest.raises(DataError, match=r"call fit\(new, old\) first"):
        Aligner().transform(new)
    with pytest.raises(DataError, match="Of 1 rows"):
        Aligner().fit(new[:1], old[:1]).transform(new)
    chosen = groups_of(new, 0.1)["chosen"]
    few = np.flatnonzero(~chosen)[:5]
    aligner = Aligner().fit(new[few], old[few])
    with pytest.raises(DataError, match="and 0 to choose the ridge"):
        aligner.transform(new)
    assert Aligner(ridge=0.1).fit(new[few], old[few]).transform(new).shape == (40, 3)
    assert Aligner("orthogonal").fit(new[few], old[few]).transform(new).shape == (40, 3)


def test_settings_that_are_not_allowed_are_refused_in_a_sentence() -> None:
    for kind in set(TRANSFORMS) - set(KINDS):
        with pytest.raises(DataError, match=rf"'{kind}' has no closed form \(train it"):
            Aligner(kind)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("procrustes", {"transform": "procrustes"}),
        ("nan", {"ridge": math.nan}),
        ("ridge", {"transform": "orthogonal", "ridge": 0.1}),
        ("held_out is 1", {"held_out": 1}),
        ("rank", {"rank": 4}),
        ("2.5", {"transform": "low_rank", "rank": 2.5}),
        ("scaled", {"scaled": True}),
    ]
    for message, arguments in cases:
        with pytest.raises(DataError, match=message):
            Aligner(**arguments)


def test_the_report_is_that_of_a_loop_over_held_out_rows() -> None:
    new, old, _ = planted_map(600, 4, 6, seed=3, noise=2.0)
    held = groups_of(new, 0.25)["held"]
    aligner = Aligner("affine", held_out=0.25).fit(new, old)
    mapped: Floats = aligner.transform(new[held])
    off = [float(np.square(m - y).sum()) for m, y in zip(mapped, old[held], strict=True)]
    power = [float(np.square(y).sum()) for y in old[held]]
    middle = old[held].mean(0)
    spread = [float(np.square(y - middle).sum()) for y in old[held]]
    wrong = [
        float(np.square(m - y).sum())
        for i, m in enumerate(mapped)
        for j, y in enumerate(old[held])
        if i != j
    ]
    report = aligner.report()
    assert (report.rows, report.held_out_rows) == (600, int(held.sum()))
    assert report.fitted_rows == 600 - report.held_out_rows
    assert report.relative_error == pytest.approx(math.sqrt(sum(off) / sum(power)), rel=1e-9)
    assert report.r2 == pytest.approx(1 - sum(off) / sum(spread), rel=1e-9)
    share = math.sqrt((sum(off) / len(off)) / (sum(wrong) / len(wrong)))
    assert report.share_of_chance == pytest.approx(share, rel=1e-9)
    assert report.better_than_chance is True
    assert report.reason is None
    # 7 numbers make a coordinate of an affine map from 6 dims; three rows for each.
    assert report.rows_needed == 21


def test_figures_of_too_few_rows_are_none_and_the_reason_says_why() -> None:
    new, old, _ = planted_map(60, 3, 5)
    report = Aligner().fit(new, old).report()
    assert report.held_out_rows < 20
    measured = (report.relative_error, report.r2, report.share_of_chance, report.deviations)
    assert measured == (None,) * 4
    assert not report.better_than_chance
    assert f"{report.held_out_rows} of 60 rows are held out" in (report.reason or "")
    assert "different" not in (report.reason or "")
    nothing = Aligner(held_out=0.0).fit(new, old).report()
    assert nothing.fitted_rows == 60
    assert not nothing.better_than_chance
    # Alike where they measure, though not everywhere.
    new, old, _ = planted_map(500, 3, 5)
    flat = np.where(groups_of(new, 0.1)["held"][:, None], 1.0, old)
    same = Aligner().fit(new, flat).report()
    assert same.r2 is None
    assert "are the same" in (same.reason or "")


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_repeat_are_too_few_to_measure_on(seed: int) -> None:
    """Twelve unrelated pairs, each forty times: were rows counted, chance would seem beaten."""
    draw = np.random.default_rng(seed)
    new, old = (np.repeat(draw.normal(size=(12, 3)), 40, axis=0) for _ in range(2))
    held = groups_of(new, 0.4)["held"]
    different = len(np.unique(new[held], axis=0))
    assert 1 < different < 12
    aligner = Aligner(held_out=0.4, ridge=0.1).fit(new, old)
    report = aligner.report()
    assert report.held_out_rows == held.sum() >= 20
    assert report.better_than_chance is None
    assert report.deviations is None
    assert f"are held out, with {different} distinct new vectors" in (report.reason or "")
    assert aligner.step_error().objects == different


def test_held_out_rows_that_repeat_count_once_in_any_division(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, old, _ = planted_map(200, 3, 5)
    objects = int(groups_of(new, 0.2)["held"].sum())
    new, old = np.repeat(new, 3, axis=0), np.repeat(old, 3, axis=0)
    whole, parts = Aligner(held_out=0.2).fit(new, old), Aligner(held_out=0.2)
    parts.fit(new[:100], old[:100]).partial_fit(new[100:350], old[100:350])
    parts.partial_fit(new[350:], old[350:])
    for aligner in (whole, parts):
        assert aligner.step_error().objects == objects
    # Of many, the number is estimated; one standard deviation is 1 / √500, 4.5 %.
    monkeypatch.setattr(solution, "KEPT_HASHES", 500)
    new, old, _ = planted_map(40_000, 1, 2)
    objects = int(groups_of(new, 0.2)["held"].sum())
    many = Aligner(held_out=0.2).fit(new, old)
    many.partial_fit(new[:30_000], old[:30_000])
    assert many.step_error().objects == pytest.approx(objects, rel=0.15)


def test_rows_that_repeat_leave_chance_as_it_is() -> None:
    new, old, _ = planted_map(600, 4, 6, seed=3, noise=2.0)
    once = Aligner(ridge=0.1).fit(new, old).report()
    again = Aligner(ridge=0.1).fit(np.repeat(new, 9, axis=0), np.repeat(old, 9, axis=0)).report()
    assert again.held_out_rows == 9 * once.held_out_rows
    assert again.deviations == pytest.approx(once.deviations, rel=1e-6)
    assert again.share_of_chance == pytest.approx(once.share_of_chance, rel=1e-6)


NEW, OLD, _ = planted_map(300, 3, 4)
ALIGNER = Aligner("affine").fit(NEW, OLD)
EXPECTED: Floats = ALIGNER.transform(NEW)


@pytest.mark.parametrize(
    ("dtype", "allowed"), [("f2", 0.05), ("f4", 1e-4), ("f8", 0), (">f4", 1e-4), ("g", 0)]
)
def test_numpy_of_any_width(dtype: str, allowed: float) -> None:
    mapped = ALIGNER.transform(NEW.astype(dtype))
    assert isinstance(mapped, np.ndarray)
    assert mapped.dtype == np.dtype(dtype)
    np.testing.assert_allclose(mapped.astype(float), EXPECTED, rtol=0, atol=allowed)


def test_numpy_views_and_memory_maps_are_read_and_not_written(tmp_path: Any) -> None:
    np.save(tmp_path / "new.npy", NEW)
    mapped = np.load(tmp_path / "new.npy", mmap_mode="r")
    assert np.array_equal(ALIGNER.transform(mapped), EXPECTED)
    assert np.array_equal(ALIGNER.transform(NEW[::-1]), EXPECTED[::-1])
    assert np.array_equal(ALIGNER.transform(np.asfortranarray(NEW)), EXPECTED)
    one = ALIGNER.transform(NEW[5])
    assert one.shape == (3,)
    np.testing.assert_allclose(one, EXPECTED[5])
    assert ALIGNER.transform(NEW[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(torch.float16, 0.05), (torch.bfloat16, 0.3), (torch.float32, 1e-4), (torch.float64, 0)],
)
def test_torch_of_any_width(dtype: torch.dtype, allowed: float) -> None:
    mapped = ALIGNER.transform(torch.from_numpy(NEW).to(dtype))
    assert isinstance(mapped, torch.Tensor)
    assert mapped.dtype == dtype
    torch.testing.assert_close(mapped.double(), torch.from_numpy(EXPECTED), rtol=0, atol=allowed)


def test_gradients_flow_through_torch_and_fitting_needs_none() -> None:
    new = torch.from_numpy(NEW[:6]).requires_grad_()
    assert torch.autograd.gradcheck(ALIGNER.transform, (new,))
    fitted = Aligner("affine").fit(torch.from_numpy(NEW).requires_grad_(), torch.from_numpy(OLD))
    assert np.array_equal(fitted.transform(NEW), EXPECTED)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0] * 4], "list"),
        (NEW.astype(int), "int64"),
        (np.ma.masked_array(NEW, NEW > 1), "Masked"),
        (NEW[None], r"\[1, 300, 4\]"),
        (np.float64(3), "float64"),
        (OLD, r"\[300, 3\]"),
        (torch.ones(3, 4, dtype=torch.int64), "int64"),
        (torch.eye(4).to_sparse(), "tensor"),
        (pa.array([[1.0, 2.0, 3.0, 4.0]]), "ListArray"),
    ],
    ids=str,
)
def test_other_types_and_shapes_are_refused(vectors: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ALIGNER.transform(vectors)


@pytest.mark.parametrize(
    "vectors",
    [
        np.array([[1.0] * 4, [np.inf] * 4]),
        torch.tensor([[1.0] * 4, [torch.nan] * 4]),
        np.array([[1.0] * 4, [6e4] * 4], "f2"),  # mapped beyond what float16 holds
        torch.tensor([[1.0] * 4, [6e4] * 4], dtype=torch.float16),
    ],
)
def test_a_row_that_cannot_be_used_is_named(vectors: Any) -> None:
    with pytest.raises(DataError, match=r"new\[1\]"):
        ALIGNER.transform(vectors)


def test_the_row_is_counted_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK", 5)
    spoilt = NEW.copy()
    spoilt[123, 1] = np.inf
    with pytest.raises(DataError, match=r"new\[123\]"):
        ALIGNER.transform(spoilt)


Tensors = dict[str, torch.Tensor]
Spoil = Callable[[Tensors, dict[str, str]], object]


def parts_of(path: Path) -> tuple[Tensors, dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {n: file.get_tensor(n) for n in file.keys()}, file.metadata()  # noqa: SIM118


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_a_loaded_aligner_is_the_saved_one_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    path = tmp_path_factory.mktemp("saved") / "back.safetensors"
    new, old, _ = planted_map(250, 3, 5, seed, noise=0.5)
    aligner = Aligner(kind).fit(new, old)
    aligner.save(path)
    loaded = Aligner.load(str(path))
    assert repr(loaded) == repr(aligner)
    assert loaded.report() == aligner.report()
    for dtype in ("f2", "f4", "f8"):
        assert np.array_equal(
            loaded.transform(new.astype(dtype)), aligner.transform(new.astype(dtype))
        )
    ours, theirs = aligner.as_transform(), loaded.as_transform()
    assert ours.kind == theirs.kind
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name])
    one, other = aligner.step_error(), loaded.step_error()
    assert torch.equal(one.sigma, other.sigma)
    assert (one.objects, one.power) == (other.objects, other.power)
    again = path.with_name("again.safetensors")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(DataError, match="cannot be fitted further"):
        loaded.partial_fit(new, old)
    assert loaded.fit(new, old).report() == aligner.report()


def test_a_failed_write_leaves_the_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old, _ = planted_map(200, 3, 5)
    path = tmp_path / "back.safetensors"
    Aligner().fit(new, old).save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"back.safetensors cannot be written: No space left"):
        Aligner("affine").fit(new, old).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="gone is not a folder; create it first"):
        Aligner().fit(new, old).save(tmp_path / "gone" / "back.safetensors")
    with pytest.raises(DataError, match="seen no rows"):
        Aligner().save(path)


def changed(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Return a change of the JSON beside the tensors."""

    def spoil(tensors: Tensors, metadata: dict[str, str]) -> None:
        record = json.loads(metadata[KEY])
        change(record)
        metadata[KEY] = json.dumps(record)

    return spoil


SPOILT: list[Spoil] = [
    lambda t, m: m.clear(),
    lambda t, m: m.update({KEY: "{"}),
    lambda t, m: m.update({KEY: "[]"}),
    changed(lambda r: r.update(format_version=2)),
    changed(lambda r: r["report"].update(surprise=1)),
    changed(lambda r: r["settings"].update(transform="deep")),
    changed(lambda r: r.update(kind="residual_mlp")),
    changed(lambda r: r.pop("report")),
    changed(lambda r: r["report"].update(old_dim=4)),
    lambda t, m: t.pop("error.sigma"),
    lambda t, m: t.pop("transform.weight"),
    lambda t, m: t["map.weight"].fill_(torch.nan),
]


@pytest.mark.parametrize("spoil", SPOILT, ids=[f"{i}" for i in range(len(SPOILT))])
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(tmp_path: Path, spoil: Spoil) -> None:
    path = tmp_path / "back.safetensors"
    new, old, _ = planted_map(200, 3, 5)
    Aligner().fit(new, old).save(path)
    tensors, metadata = parts_of(path)
    spoil(tensors, metadata)
    record = json.loads(metadata[KEY]) if metadata.get(KEY, "{") != "{" else {}
    if record:
        record["sha256"] = content_digest(record, tensors)
        metadata[KEY] = json.dumps(record)
    save_file(tensors, path, metadata)
    with pytest.raises(DataError, match=rf"^[^\n]*{re.escape(str(path))}[^\n]*\.$"):
        Aligner.load(path)


@pytest.mark.parametrize("kind", ["linear", "affine"])
def test_one_bit_flipped_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "back.safetensors"
    new, old, _ = planted_map(200, 3, 5)
    Aligner(kind).fit(new, old).save(path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    text = whole.index(b'\\"rows\\":') + 9  # a digit of the report
    places = [text, *range(header, len(whole), 97), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"back.safetensors is damaged: its content") as e:
            Aligner.load(path)
        assert "\n" not in str(e.value)
    path.write_bytes(whole)
    assert np.array_equal(
        Aligner.load(path).transform(new), Aligner(kind).fit(new, old).transform(new)
    )
