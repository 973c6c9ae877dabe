"""A version is published whole or not at all, and only if it can be read again."""

from __future__ import annotations

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
from tests.support.artefacts import artefact, shop_of_three
from tests.support.buckets import PLACE
from tests.support.dying import is_alone, run_until
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.lineages import lineage_of, publish
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import (
    DataError,
    LineageError,
    ShapeError,
)
from evergram.lineage import publish_statistics
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.publish_statistics import RowSample


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
    for text in ("x", "01", "1.0", " 1", "9" * 19):
        with pytest.raises(DataError, match=rf"The object ids in .* are integers.*'{text}'"):
            lineage.check_ids({"object": pa.array(["5", text])})


@pytest.mark.parametrize("text", [False, True])
def test_ids_become_numbers_or_texts_as_before(tmp_path: Path, text: bool) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1, text=text)
    publish(lineage, 1, text=not text)
    assert lineage.embeddings("object")[0].type == (pa.string() if text else pa.int64())


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


def test_a_transform_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    lineage = shop_of_three(tmp_path / "shop")
    before = contents(lineage.path)
    with pytest.raises(ShapeError, match=r"\(4, 5\)"):
        publish_next(lineage, artefact(5, 3))
    with pytest.raises(ShapeError, match="Version 3 needs"):
        publish_next(lineage, artefact(5))
    assert contents(lineage.path) == before


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


def begin(lineage: Lineage, then: Callable[[Lineage], object]) -> None:
    """Begin a lineage, and call `then` with it opened anew, when it has version 0."""
    with lineage.beginning(artefact(2)):
        then(Lineage.open(lineage.address))


def interrupt(_: object) -> None:
    raise KeyboardInterrupt


def refused(lineage: Lineage) -> None:
    """Begin with a version 1 whose transform does not lead to version 0."""
    with pytest.raises(ShapeError):
        begin(lineage, lambda _: publish_next(lineage, artefact(5, 4)))


def test_both_versions_are_published(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l")
    with lineage.beginning(artefact(2)):
        publish_next(lineage, artefact(3, 2, seed=1))
    assert [each.version for each in Lineage.open(tmp_path / "l").versions] == [0, 1]


def test_without_the_second_nothing_is_left_and_it_can_begin_again(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineages" / "l")
    refused(lineage)
    assert list(tmp_path.iterdir()) == []
    assert (lineage.versions, lineage.next_version) == ([], 0)
    with lineage.beginning(artefact(2)):
        publish_next(lineage, artefact(3, 2, seed=1))
    assert Lineage.open(tmp_path / "lineages" / "l").newest == 1


def test_a_folder_that_was_there_stays_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / ".notes").write_text("mine")
    refused(Lineage.create(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [".notes"]


def test_in_a_bucket_nothing_is_left_either(bucket: str) -> None:
    refused(Lineage.create(bucket))
    assert not MemoryFileSystem.store
    assert not Lineage.exists(bucket)
    with pytest.raises(KeyboardInterrupt):
        begin(Lineage.create(bucket), interrupt)
    assert not Lineage.exists(bucket)


def test_a_version_that_a_consumer_is_on_stays(tmp_path: Path) -> None:
    def join(opened: Lineage) -> None:
        ConsumerRegistry.open(opened.address).add("ads", "0", opened.resolve)
        interrupt(opened)

    with pytest.raises(KeyboardInterrupt):
        begin(Lineage.create(tmp_path / "l"), join)
    assert Lineage.open(tmp_path / "l").newest == 0


def test_a_version_that_another_process_followed_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def follow(opened: Lineage) -> None:
        publish_next(opened, artefact(3, 2, seed=1))
        interrupt(opened)

    with pytest.raises(KeyboardInterrupt):
        begin(Lineage.create(tmp_path / "l"), follow)
    assert Lineage.open(tmp_path / "l").newest == 1
    assert "Version 0 stays" in caplog.text


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
    monkeypatch.setattr("evergram.lineage.publish_statistics.LEAST_ROWS", 90)
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
    monkeypatch.setattr(publish_statistics, "LEAST_ROWS", 10)
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
    count, mean, second = sample.moments()
    wide = vectors.double().numpy()
    assert count == 5000
    np.testing.assert_allclose(mean.numpy(), wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        second.numpy(), np.einsum("ni,nj->ij", wide, wide) / 5000, rtol=1e-12
    )
