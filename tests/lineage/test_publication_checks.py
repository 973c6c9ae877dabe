"""An artefact that does not fit is refused before the lineage changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.publishing import publish_next

from evergram.compatibility import Aligner
from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.errors import DataError, EvergramError, ShapeError
from evergram.lineage.artefact import Artefact, checked_block, checked_blocks
from evergram.lineage.lineage import Lineage
from evergram.lineage.publication_checks import CanaryCheck, check_transform_on_canaries


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
        lambda ids, z: {"canaries": {SIDE: (ids[:5], z[:5, :2])}},
        lambda ids, z: {"recipe": {"object": object()}},
        lambda ids, z: {"metrics": {"metrics": {"model": {}}, "x": {1, 2}}},
        lambda ids, z: {"transform": object()},
        lambda ids, z: {"error": StepError(torch.eye(2), 60, 1.0)},
        lambda ids, z: {"error": StepError(-torch.eye(OLD_DIM), 60, 1.0)},
        lambda ids, z: {"error": StepError(torch.zeros(OLD_DIM, OLD_DIM), 0, float("nan"))},
        lambda ids, z: {"error": StepError(torch.eye(OLD_DIM), 60, float("inf"))},
        lambda ids, z: {"error": StepError(torch.eye(OLD_DIM), 1e9, 1.0)},  # type: ignore[arg-type]
        lambda ids, z: {"canaries": {SIDE: None}},
        lambda ids, z: {"canaries": {SIDE: (5, z[:1])}},
        lambda ids, z: {"dim": 0},
        lambda ids, z: {"transform": _broken()},
        lambda ids, z: {"transform": Inherited(OLD_DIM, z.shape[1])},
        lambda ids, z: {"encoder": object()},
        lambda ids, z: {"embeddings": {SIDE: None}},
        lambda ids, z: {"embeddings": {"other": (ids, z)}, "canaries": {}},
        lambda ids, z: {"canaries": {"other": (ids[:5], z[:5])}},
        lambda ids, z: {"canaries": {SIDE: (ids[:5], z[:5] * float("nan"))}},
        lambda ids, z: {"canaries": {SIDE: (ids[:5], -z[:5])}},
        lambda ids, z: {"canaries": {SIDE: (["a", "a"], z[:2])}},
        lambda ids, z: {"canaries": {SIDE: (["nobody"], z[:1])}},
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


def test_canaries_may_be_lists_and_numpy_arrays(tmp_path: Path) -> None:
    lineage = exact_lineage(tmp_path / "lineage")
    version = exact_version(2, 1)
    ids, z = version.block(SIDE)
    canaries: Any = {SIDE: (ids[:3].to_pylist(), z[:3].numpy())}
    publish_next(lineage, replace(version, canaries=canaries))
    Lineage.open(lineage.path).check()


ROWS = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("ids", "vectors", "sentence"),
    [
        (pa.array([1, None]), ROWS, "Row 1 of the shop embeddings: its id is empty"),
        (pa.array(["a", ""]), ROWS, "Row 1 of the shop embeddings: its id is empty"),
        (pa.array([1.0, 2.0]), ROWS, r"shop ids cannot be published \(double\)"),
        ([True, False], ROWS, r"shop ids cannot be published \(bool\)"),
        ([1, "a"], ROWS, "shop ids cannot be published"),
        ([2**63, 1], ROWS, "shop ids cannot be published"),
        (None, ROWS, "shop ids cannot be published"),
        ([1, 2], ROWS.long(), r"are of torch\.int64; they must be floats"),
        ([1, 2], [[1.0] * 3] * 2, "are of list; they must be floats"),
        ([1, 2], np.ones((2, 3), dtype=np.int32), "are of int32; they must be floats"),
        ([1, 2], torch.ones(2, 4), r"are \[2, 4\] for 2 ids; with dim 3"),
        ([1], ROWS, r"are \[2, 3\] for 1 ids"),
        ([1, 2], torch.ones(2), r"are \[2\] for 2 ids"),
    ],
)
def test_a_block_that_cannot_be_read_again_is_refused(
    ids: Any, vectors: Any, sentence: str
) -> None:
    with pytest.raises((DataError, ShapeError), match=sentence):
        checked_block(ids, vectors, "shop", 3)


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2],
        np.array([1, 2], dtype=np.int32),
        pa.array([1, 2], pa.uint8()),
        pa.chunked_array([[1], [2]]),
        ["a", "b"],
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.large_string()),
    ],
)
def test_ids_and_vectors_of_every_library_become_arrow_and_torch(ids: Any) -> None:
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
        named = int(str(caught.value).split(" id ")[1].split(" ")[0])
        assert named in twice
        assert f"occurs {ids.count(named)} times" in str(caught.value)
    else:
        assert "at least one row" in str(caught.value)


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


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(0, 5), min_size=1, unique=True),
    cut=st.integers(0, 6),
    texts=st.tuples(st.booleans(), st.booleans()),
)
def test_the_vectors_of_the_version_pass_wherever_they_are(
    rows: list[int], cut: int, texts: tuple[bool, bool]
) -> None:
    own = [str(IDS[row]) if texts[0] else IDS[row] for row in rows]
    check = CanaryCheck(own, Z[rows] * (1 + 1e-5), "shop", 3)
    passed = list(check.through(blocks(cut, texts[1])))
    assert torch.equal(torch.cat([z for _, z in passed]), Z)


@pytest.mark.parametrize("factor", [-1.0, 1.01, float("nan")])
def test_another_vector_is_refused(factor: float) -> None:
    check = CanaryCheck([8], Z[2:3] * factor, "shop", 3)
    with pytest.raises(DataError, match="The canary 8 of the side shop is not the vector"):
        list(check.through(blocks(4, False)))


def test_an_id_that_the_version_lacks_is_refused() -> None:
    for name in (7, "x", "²", "9" * 30):
        check = CanaryCheck([name], Z[:1], "shop", 3)
        with pytest.raises(DataError, match=f"The canary {name!r} of the side shop is not among"):
            list(check.through(blocks(3, False)))


OBJECTS = 300
DRAW = np.random.default_rng(0)
PAST = DRAW.normal(size=(OBJECTS, 3)).astype(np.float32)
NOW = (PAST @ DRAW.normal(size=(3, 4)) + 0.01 * DRAW.normal(size=(OBJECTS, 4))).astype(np.float32)
FITTED = Aligner().fit(NOW, PAST)


def block(vectors: np.ndarray, size: int = OBJECTS) -> tuple[pa.Array, torch.Tensor]:
    return pa.array(range(size)), torch.from_numpy(vectors[:size].copy())


def opened(folder: Path, canaries: int = 100) -> Lineage:
    lineage = Lineage.create(folder)
    kept = {"object": block(PAST, canaries)}
    lineage.publish(Artefact(3, {"object": block(PAST)}, None, {"metrics": {}}, {}, canaries=kept))
    return lineage


def following(
    lineage: Lineage, transform: Transform, error: StepError | None, canaries: int = 100
) -> Artefact:
    kept = {"object": block(NOW, canaries)}
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
        (FITTED.step_error(), r"comes with an error of 0\.0\d+, and on 100 objects that version 0"),
        (None, "comes with no error, and on 100 objects"),
        (StepError(torch.zeros(3, 3), 0, float("nan")), "comes with an error of 0, and on 100"),
    ],
)
def test_another_transform_is_refused(
    tmp_path: Path, error: StepError | None, message: str
) -> None:
    lineage = opened(tmp_path / "lineage")
    artefact = following(lineage, garbage(), error)
    past = lineage.canaries(0)
    with pytest.raises(DataError, match=message):
        check_transform_on_canaries(artefact, past, 0)
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
    with caplog.at_level(logging.WARNING):
        check_transform_on_canaries(trained, lineage.canaries(0), 0)
    assert "does not lead from these vectors" in caplog.text
