"""A version is published whole or not at all, and only if it fits and can be read again."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.artefacts import artefact, shop_of_three
from tests.support.buckets import PLACE
from tests.support.dying import is_alone, run_until
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.lineages import lineage_of
from tests.support.publishing import publish_next

from evergram.compatibility import Aligner
from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.errors import (
    DataError,
    EvergramError,
    LineageError,
    ShapeError,
)
from evergram.ids import id_hashes
from evergram.lineage import publication
from evergram.lineage.artefact import Artefact, checked_block, checked_blocks
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication import (
    CanarySample,
    RowSample,
    canary_rows,
    check_transform_on_canaries,
)


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


def test_ids_of_another_type_are_refused_before_training(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "numbers", versions=1)
    lineage.check_ids({"object": pa.array(["7"]), "another": pa.array(["x"])})
    for text in ("x", "01", "1.0", " 1", "9" * 19):
        with pytest.raises(DataError, match=rf"The object ids in .* are integers.*'{text}'"):
            lineage.check_ids({"object": pa.array(["5", text])})


def test_an_artefact_that_names_no_predecessor_is_refused(lineage: Lineage) -> None:
    with pytest.raises(LineageError, match=r"does not say which version .* follows=lineage"):
        lineage.publish(exact_version(2, 1))
    assert Lineage.open(lineage.path).newest == 1


def test_what_a_gate_returns_changes_metrics_alone(lineage: Lineage) -> None:
    """The rest was checked before the gate, and is what is written."""

    def gate(fitting: Artefact) -> Artefact:
        metrics = {**fitting.metrics, "gated": 1}
        return replace(fitting, metrics=metrics, dim=99, transform=None, follows="another")

    given = exact_version(2, 1)
    assert publish_next(lineage, given, gate=gate) == 2
    assert lineage.metrics(2)["gated"] == 1
    assert lineage.manifest(2).dim == given.dim
    assert lineage.view(1).dim == lineage.manifest(1).dim


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def test_a_transform_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    lineage = shop_of_three(tmp_path / "shop")
    before = contents(lineage.path)
    with pytest.raises(ShapeError, match=r"\(4, 5\)"):
        publish_next(lineage, artefact(5, 3))
    with pytest.raises(ShapeError, match="after version 2 needs"):
        publish_next(lineage, artefact(5))
    assert contents(lineage.path) == before
    empty = Lineage.create(tmp_path / "new")
    with pytest.raises(ShapeError, match="Version 0 has no previous version, so it takes no"):
        publish_next(empty, artefact(3, 2))
    assert not empty.path.exists()


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
    # Beside the lineage the model that came too late is after; see end_to_end/test_splits.py.
    assert {k: v for k, v in after.items() if not k.startswith(".work/lost/")} == before


# The dim of version 0; each later one has one more, and leads back to the one before.
START, NEWEST = 2, 1


def publish_random(lineage: Lineage) -> None:
    number = len(lineage.versions)
    before = START + number - 1 if number else None
    publish_next(lineage, artefact(START + number, before, seed=number))


def publish_one(path: Path, pipe: int) -> None:
    """Publish, and say that it was done."""
    publish_random(Lineage.open(path))
    os.write(pipe, b"done")


def check_whole(path: Path) -> int:
    """Every file is as it was published. Returns: the newest version."""
    lineage = Lineage.open(path)
    lineage.check()
    newest = lineage.newest
    published = artefact(START + newest, START + newest - 1, newest)
    for side in ("query", "candidate"):
        assert torch.equal(lineage.embeddings(side)[1], published.block(side)[1])
    return newest


@pytest.mark.long
def test_a_publisher_killed_after_each_of_its_operations_leaves_whole_versions(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Killed there, then somewhere else on top of what that left; the next publication succeeds."""
    if not is_alone(request):
        return
    whole, path = tmp_path / "whole", tmp_path / "lineage"
    lineage = Lineage.create(whole)
    for _ in range(NEWEST + 1):
        publish_random(lineage)
    # A version whose embeddings go with the next publication, and one whose stay.
    lineage.label("kept", NEWEST)
    publish_random(lineage)
    draw = random.Random(0)
    before = after = left_over = operation = 0
    killed = True
    while killed:
        operation += 1
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        work = partial(publish_one, path)
        killed, answer = run_until(operation, work, path)
        assert answer == (b"" if killed else b"done")
        newest = check_whole(path)
        # Once it is there it stays: all that is killed later has published.
        assert newest == NEWEST + 2 if after else newest in (NEWEST + 1, NEWEST + 2)
        before += newest == NEWEST + 1
        after += newest == NEWEST + 2
        left_over += any(path.rglob(".*.part"))
        run_until(draw.randrange(1, 60), work, path)
        assert check_whole(path) in (newest, newest + 1)
        # The next one succeeds and clears away what was left.
        lineage = Lineage.open(path)
        publish_random(lineage)
        assert not list(path.rglob(".*.part"))
        assert {p.name for p in (path / "versions").iterdir()} == set(
            map(str, range(lineage.newest + 1))
        )
    # It dies on both sides of the one rename that publishes, and with half of a version there.
    assert before > 30
    assert after > 3
    assert left_over > 20


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("EVERGRAM_CACHE", str(tmp_path / "cache"))
    MemoryFileSystem.store.clear()
    yield PLACE
    MemoryFileSystem.store.clear()


def test_the_forward_map_is_that_of_least_squares(tmp_path: Path) -> None:
    """Against numpy's solution on the same pairs; ids in another order, some on one side only."""
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(400, 3, generator=draw)
    plant = torch.randn(3, 4, generator=draw)
    noise = 0.01 * torch.randn(400, 4, generator=draw)
    new = old @ plant + 2.0 + noise
    order = torch.randperm(400, generator=draw)
    lineage = Lineage.create(tmp_path / "lineage")
    ids = pa.array(range(400))
    one = exact_version(0, None)
    publish_next(
        lineage, Artefact(3, {SIDE: (ids.slice(0, 300), old[:300])}, None, one.metrics, one.recipe)
    )
    assert lineage.forward(0, 0) is not None
    back = LinearTransform.from_matrix(torch.randn(3, 4, generator=draw))
    shuffled = (ids.take(pa.array(order.numpy())).cast(pa.string()), new[order])
    publish_next(lineage, Artefact(4, {SIDE: shuffled}, back, one.metrics, one.recipe))
    forward = lineage.forward(0, 1)
    assert forward is not None
    weight, offset = forward
    ones = torch.ones(300, 1, dtype=torch.float64)
    design = torch.cat([old[:300].double(), ones], dim=1)
    expected = torch.linalg.lstsq(design, new[:300].double(), driver="gelsd").solution
    torch.testing.assert_close(weight, expected[:3].T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(offset, expected[3], rtol=1e-3, atol=1e-3)
    count, mean, second = lineage.moments(1)[SIDE]
    wide = new.double()
    assert count == 400
    torch.testing.assert_close(mean, wide.mean(0))
    torch.testing.assert_close(second, wide.T @ wide / 400)
    with pytest.raises(LineageError, match="Version 0 is before version 1"):
        lineage.forward(1, 0)


def test_too_few_pairs_give_no_forward_map(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    one = exact_version(0, None)
    few = (pa.array(range(8)), torch.randn(8, 3))
    publish_next(lineage, Artefact(3, {SIDE: few}, None, one.metrics, one.recipe))
    back = LinearTransform.from_matrix(torch.eye(3))
    publish_next(lineage, Artefact(3, {SIDE: few}, back, one.metrics, one.recipe))
    assert lineage.forward(0, 1) is None
    assert lineage.moments(1)[SIDE][0] == 8


def test_of_many_rows_a_sample_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergram.lineage.publication.LEAST_ROWS", 90)
    lineage = Lineage.create(tmp_path / "lineage")
    one = exact_version(0, None)
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(40_000, 2, generator=draw)  # more than a block
    ids = pa.array(range(40_000))
    publish_next(lineage, Artefact(2, {SIDE: (ids, old)}, None, one.metrics, one.recipe))
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    back = LinearTransform.from_matrix(turn.T)
    new = (ids.slice(0, 39_999), (old @ turn.T)[:39_999])
    publish_next(lineage, Artefact(2, {SIDE: new}, back, one.metrics, one.recipe))
    assert lineage.moments(1)[SIDE][0] == 79
    forward = lineage.forward(0, 1)
    assert forward is not None
    torch.testing.assert_close(forward[0], turn.double(), rtol=1e-4, atol=1e-4)


def test_a_sample_is_every_nth_row_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "LEAST_ROWS", 10)
    vectors = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    for size in (1, 7, 100):
        sample = RowSample("query", 0)
        cuts = range(0, 100, size)
        blocks = [(pa.array(range(i, min(i + size, 100))), vectors[i : i + size]) for i in cuts]
        passed = list(sample.through(blocks))
        assert torch.equal(torch.cat([block for _, block in passed]), vectors)
        step = sample.ids[1].as_py()
        assert sample.ids.to_pylist() == list(range(0, 100, step))
        # No more than the limit, and more than half of it.
        assert 5 < len(sample.ids) <= 10
        assert torch.equal(sample.vectors, vectors[::step])


def test_moments_are_those_of_the_rows_in_float64() -> None:
    vectors = 1000 + torch.randn(5000, 4, generator=torch.Generator().manual_seed(0))
    sample = RowSample("query", 4)
    list(sample.through([(pa.array(range(5000)), vectors)]))
    count, mean, second = sample.moments
    wide = vectors.double().numpy()
    assert count == 5000
    np.testing.assert_allclose(mean.numpy(), wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        second.numpy(), np.einsum("ni,nj->ij", wide, wide) / 5000, rtol=1e-12
    )


def _twice(ids: pa.Array, z: torch.Tensor) -> Iterator[tuple[pa.Array, torch.Tensor]]:
    yield ids, z
    yield ids[:1], z[:1]


OLD_DIM = exact_version(1, 1).dim


class Inherited(LinearTransform):
    """A class of one's own that would be read back as its parent."""


def _broken() -> LinearTransform:
    transform = LinearTransform(OLD_DIM, exact_version(2, 1).dim)
    with torch.no_grad():
        transform.weight[0, 0] = float("nan")
    return transform


@pytest.mark.parametrize(
    "change",
    [
        lambda ids, z: {"embeddings": {}},
        lambda ids, z: {"embeddings": {SIDE: (ids, z[:, :2])}},
        lambda ids, z: {"embeddings": {SIDE: lambda: _twice(ids, z)}},
        lambda ids, z: {"embeddings": {SIDE: lambda: iter(())}},
        lambda ids, z: {"metrics": {"metrics": []}},
        lambda ids, z: {"metrics": {"metrics": {"model": {"a": "x"}}}},
        lambda ids, z: {"metrics": {"probes": [1]}},
        lambda ids, z: {"metrics": {"probes": {}}},
        lambda ids, z: {"transform": object()},
        lambda ids, z: {"error": StepError(torch.eye(2), 60, 1.0)},
        lambda ids, z: {"error": StepError(torch.eye(OLD_DIM), 60, float("inf"))},
        lambda ids, z: {"canaries": {SIDE: None}},
        lambda ids, z: {"canaries": {SIDE: 5}},
        lambda ids, z: {"dim": 0},
        lambda ids, z: {"transform": _broken()},
        lambda ids, z: {"transform": Inherited(OLD_DIM, z.shape[1])},
        lambda ids, z: {"encoder": object()},
        lambda ids, z: {"embeddings": {SIDE: None}},
        lambda ids, z: {"embeddings": {"other": (ids, z)}, "canaries": {}},
        lambda ids, z: {"canaries": {"other": ids[:5]}},
        lambda ids, z: {"canaries": {SIDE: ["nobody"]}},
        lambda ids, z: {"canaries": {SIDE: ["nobody", None]}},
    ],
)
def test_a_lineage_stays_as_it_was_where_an_artefact_does_not_fit(
    tmp_path: Path, change: Callable[[pa.Array, torch.Tensor], dict[str, Any]]
) -> None:
    lineage = exact_lineage(tmp_path / "lineage")
    before = {p: p.read_bytes() for p in lineage.path.rglob("*") if p.is_file()}
    version = exact_version(2, 1)
    with pytest.raises(EvergramError):
        publish_next(lineage, replace(version, **change(*version.block(SIDE))))
    after = {p: p.read_bytes() for p in lineage.path.rglob("*") if p.is_file()}
    assert {p for p in after if "lock" not in p.name} == {p for p in before if "lock" not in p.name}
    assert all(after[p] == content for p, content in before.items())
    assert publish_next(Lineage.open(lineage.path), version) == 2
    Lineage.open(lineage.path).check()


ROWS = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("ids", "vectors", "sentence"),
    [
        (pa.array([1, None]), ROWS, "Of the shop embeddings row 2 has no id"),
        (pa.array(["a", ""]), ROWS, "Of the shop embeddings row 2 has no id"),
        (pa.array([1.0, 2.0]), ROWS, r"shop ids cannot be published \(double\)"),
        ([True, False], ROWS, r"shop ids cannot be published \(bool\)"),
        ([1, "a"], ROWS, "shop ids cannot be published"),
        ([2**63, 1], ROWS, "shop ids cannot be published"),
        (None, ROWS, "shop ids cannot be published"),
        ([1, 2], ROWS.long(), r"are torch\.int64; they must be floats"),
        ([1, 2], [[1.0] * 3] * 2, "are list; they must be floats"),
        ([1, 2], np.ones((2, 3), dtype=np.int32), "are int32; they must be floats"),
        ([1, 2], torch.ones(2, 4), r"shape \[2, 4\]; with 2 ids and dim 3 it must be \[2, 3\]"),
        ([1], ROWS, r"shape \[2, 3\]; with 1 ids"),
        ([1, 2], torch.ones(2), r"shape \[2\]; with 2 ids"),
    ],
)
def test_a_block_that_cannot_be_read_again_is_refused(
    ids: Any, vectors: Any, sentence: str
) -> None:
    with pytest.raises((DataError, ShapeError), match=sentence):
        checked_block(ids, vectors, "shop", 3)


def test_ids_and_vectors_of_every_library_become_arrow_and_torch() -> None:
    texts = pa.array(["a", "b"])
    for ids in (
        *([1, 2], np.array([1, 2], dtype=np.int32), pa.array([1, 2], pa.uint8())),
        *(pa.chunked_array([[1], [2]]), ["a", "b"], texts.dictionary_encode()),
        texts.cast(pa.large_string()),
    ):
        keys, rows = checked_block(ids, np.ones((2, 3), dtype=np.float64), "shop", 3)
        assert keys.type in (pa.int64(), pa.string())
        assert keys.to_pylist() in ([1, 2], ["a", "b"])
        assert isinstance(rows, torch.Tensor)
        assert rows.shape == (2, 3)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), max_size=5), max_size=5))
def test_an_id_that_occurs_twice_is_named_wherever_it_is(parts: list[list[int]]) -> None:
    ids = [i for part in parts for i in part]
    blocks = ((pa.array(p, pa.int64()), torch.ones(len(p), 3)) for p in parts)
    twice = {i for i in ids if ids.count(i) > 1}
    if ids and not twice:
        assert [i for keys, _ in checked_blocks(blocks, "shop", 3) for i in keys.to_pylist()] == ids
        return
    with pytest.raises(DataError) as caught:
        list(checked_blocks(blocks, "shop", 3))
    if ids:
        named = int(str(caught.value).split("such as ")[1].split(";")[0])
        assert named in twice
        assert f"{len(twice)} ids are repeated" in str(caught.value)
    else:
        assert "at least one" in str(caught.value)


def test_integers_and_texts_are_not_mixed() -> None:
    blocks = [([1], torch.ones(1, 3)), (["a"], torch.ones(1, 3))]
    with pytest.raises(DataError, match="int64 in one block and string in another"):
        list(checked_blocks(blocks, "shop", 3))


def test_vectors_of_a_model_and_arrays_that_torch_does_not_take_are_read() -> None:
    wanted = torch.arange(6.0).reshape(3, 2)
    array = wanted.numpy()
    backwards = np.ascontiguousarray(array[::-1])[::-1]
    for vectors in (wanted.clone().requires_grad_(), backwards, array.astype(">f4")):
        _, rows = checked_block([1, 2, 3], vectors, "object", 2)
        assert not rows.requires_grad
        assert torch.equal(rows, wanted)
    with pytest.raises(DataError, match="dense torch tensor"):
        checked_block([1, 2, 3], wanted.to_sparse(), "object", 2)


IDS = [5, 3, 8, 1, 9, 2]
Z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def blocks(cut: int, texts: bool) -> list[tuple[pa.Array, torch.Tensor]]:
    ids = pa.array(IDS).cast(pa.string()) if texts else pa.array(IDS)
    return [(ids[:cut], Z[:cut]), (ids[cut:], Z[cut:])]


@pytest.mark.parametrize("cut", [0, 4, 6])
@pytest.mark.parametrize("texts", [True, False])
def test_canaries_are_those_that_are_named_wherever_they_pass(cut: int, texts: bool) -> None:
    for wanted in (["8", "2", "3"], [], ["7"], ["²"]):
        sample = CanarySample("shop", pa.array(wanted, pa.string()))
        if set(wanted) - set(map(str, IDS)):
            with pytest.raises(DataError, match=f"canary {wanted[0]!r} of the side shop is not"):
                list(sample.through(blocks(cut, texts)))
            continue
        passed = list(sample.through(blocks(cut, texts)))
        assert torch.equal(torch.cat([z for _, z in passed]), Z)
        assert sample.ids.to_pylist() == [str(i) for i in IDS if str(i) in wanted]
        assert torch.equal(sample.vectors, Z[[IDS.index(int(i)) for i in sample.ids.to_pylist()]])


def test_without_names_they_are_past_ones_and_the_rows_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However the rows are cut, as if all were looked at together."""
    monkeypatch.setattr(publication, "CANARIES", 40)
    ids, z = pa.array(range(300)), torch.randn(300, 3)
    past = pa.array(["gone", "7", "150"])
    rows = canary_rows(ids, torch.from_numpy(id_hashes(ids)), past)
    for size in (1, 90, 300):
        sample = CanarySample("shop", past=past)
        list(sample.through((ids[i : i + size], z[i : i + size]) for i in range(0, 300, size)))
        assert set(sample.ids.to_pylist()) == set(map(str, rows.tolist()))
        assert torch.equal(sample.vectors, z[[int(i) for i in sample.ids.to_pylist()]])


OBJECTS = 300
DRAW = np.random.default_rng(0)
PAST = DRAW.normal(size=(OBJECTS, 3)).astype(np.float32)
NOW = (PAST @ DRAW.normal(size=(3, 4)) + 0.01 * DRAW.normal(size=(OBJECTS, 4))).astype(np.float32)
FITTED = Aligner().fit(NOW, PAST)


def block(vectors: np.ndarray, size: int = OBJECTS) -> tuple[pa.Array, torch.Tensor]:
    return pa.array(range(size)), torch.from_numpy(vectors[:size].copy())


def opened(folder: Path, canaries: int = 100) -> Lineage:
    lineage = Lineage.create(folder)
    kept = {"object": range(canaries)}
    lineage.publish(Artefact(3, {"object": block(PAST)}, None, {"metrics": {}}, {}, canaries=kept))
    return lineage


def following(
    lineage: Lineage, transform: Transform, error: StepError | None, canaries: int = 100
) -> Artefact:
    kept = {"object": range(canaries)}
    follows = lineage.manifest(lineage.newest).fingerprint
    whole = {"object": block(NOW)}
    metrics: dict[str, dict[str, float]] = {"metrics": {}}
    return Artefact(4, whole, transform, metrics, {}, canaries=kept, error=error, follows=follows)


def garbage() -> LinearTransform:
    return LinearTransform.from_matrix(10 * torch.randn(3, 4, generator=torch.manual_seed(0)))


@pytest.mark.parametrize("stated", [True, False])
def test_the_fitted_transform_is_published(tmp_path: Path, stated: bool) -> None:
    lineage = opened(tmp_path / "lineage")
    error = FITTED.step_error() if stated else None
    assert lineage.publish(following(lineage, FITTED.as_transform(), error)) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            FITTED.step_error(),
            r"has a stated error of 0\.0\d+, but on 100 canaries of the previous",
        ),
        (None, "has no stated error, but on 100 canaries"),
        (StepError(torch.zeros(3, 3), 0, float("nan")), "has a stated error of 0, but on 100"),
    ],
)
def test_another_transform_is_refused(
    tmp_path: Path, error: StepError | None, message: str
) -> None:
    lineage = opened(tmp_path / "lineage")
    artefact = following(lineage, garbage(), error)
    kept = {"object": (pa.array(map(str, range(100))), block(NOW, 100)[1])}
    with pytest.raises(DataError, match=message):
        check_transform_on_canaries(artefact, kept, lineage.canaries(0))
    if error is None or error.objects:
        with pytest.raises(DataError, match="Nothing was published; give the transform"):
            lineage.publish(artefact)
        assert lineage.newest == 0


def test_too_few_canaries_belie_nothing(tmp_path: Path) -> None:
    lineage = opened(tmp_path / "lineage", canaries=19)
    assert lineage.publish(following(lineage, garbage(), FITTED.step_error())) == 1


def test_a_trained_model_is_not_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lineage = opened(tmp_path / "lineage")
    artefact = following(lineage, garbage(), FITTED.step_error())
    trained = replace(artefact, encoder=object())  # type: ignore[arg-type]
    kept = {"object": (pa.array(map(str, range(100))), block(NOW, 100)[1])}
    with caplog.at_level(logging.WARNING):
        check_transform_on_canaries(trained, kept, lineage.canaries(0))
    assert "does not map these vectors" in caplog.text
