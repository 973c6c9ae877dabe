"""A lineage in operation: canaries, roll back, withdrawal, retirement, and the map forward."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from filelock import FileLock
from tests.support.dying import is_alone
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, LineageError, UnknownVersionError
from evergram.lineage.artefact import Artefact
from evergram.lineage.canary_check import diagnose_lineage
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage

SIDE = "object"
DIMS = (4, 5, 6, 3, 4)
ROWS = 60


def vectors(number: int) -> Tensor:
    """z_n of a chain in which every step is exact: z_{n-1} = B_n z_n needs D_n ≥ D_{n-1} for that,
    so all are made from one matrix of rank 3."""
    draw = torch.Generator().manual_seed(7)
    base = torch.randn(ROWS, 3, generator=draw)
    own = torch.Generator().manual_seed(100 + number)
    return base @ torch.randn(3, DIMS[number], generator=own)


def artefact(number: int, before: int | None) -> Artefact:
    """Version `number`, which leads to version `before`."""
    z = vectors(number)
    transform, error = None, None
    if before is not None:
        past = vectors(before)
        matrix = torch.linalg.lstsq(z.double(), past.double(), driver="gelsd").solution.T.float()
        transform = LinearTransform.from_matrix(matrix)
        error = StepError.of(z @ matrix.T, past)
    ids = pa.array([f"id{i}" for i in range(ROWS)])
    return Artefact(
        dim=DIMS[number],
        embeddings={SIDE: (ids, z)},
        transform=transform,
        metrics={"metrics": {"model": {}}},
        recipe={"number": number},
        canaries={SIDE: (ids[:5], z[:5])},
        error=error,
    )


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 and 1."""
    found = Lineage.create(tmp_path / "lineage", "shop")
    found.publish(artefact(0, None))
    found.publish(artefact(1, 0))
    return found


def stored(lineage: Lineage) -> list[int]:
    return sorted(int(p.name) for p in (lineage.path / "embeddings").iterdir())


def pin(lineage: Lineage, **consumers: str) -> None:
    kept = ConsumerRegistry.open(lineage.path)
    for consumer in kept.list():
        kept.remove(consumer.name)
    for name, to in consumers.items():
        kept.add(name, to, lineage.resolve)


def reads(lineage: Lineage, version: int | str, source: int | None = None) -> Tensor:
    return lineage.view(version, source).embeddings(SIDE)[1]


def test_a_version_that_is_not_promoted_is_beside_the_one_in_production(lineage: Lineage) -> None:
    assert (lineage.labels, lineage.production) == ({}, 1)
    lineage.publish(artefact(2, 1), promote=False)
    again = Lineage.open(lineage.path)
    for found in (lineage, again):
        assert (found.newest, found.production) == (2, 1)
        assert found.labels == {"stable": 1}
        assert found.resolve(None) == found.resolve("stable") == 1
        assert found.versions_with_embeddings == stored(found) == [1, 2]
        # Each by its own embeddings, and the older one through the chain too.
        assert torch.equal(found.embeddings(SIDE, 1)[1], vectors(1))
        assert torch.equal(found.embeddings(SIDE)[1], vectors(2))
        assert torch.equal(reads(found, "stable", source=1), vectors(1))
        torch.testing.assert_close(reads(found, "stable"), vectors(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(reads(found, 0, source=1), vectors(0), rtol=1e-4, atol=1e-4)
        with pytest.raises(LineageError, match=r"embeddings of version 0 .* those of 1, 2 are"):
            found.embeddings(SIDE, 0)
        with pytest.raises(UnknownVersionError, match="back only"):
            found.view(2, source=1)


def test_promotion_and_roll_back(lineage: Lineage) -> None:
    lineage.publish(artefact(2, 1), promote=False)
    lineage.label("stable", "newest")
    assert (lineage.production, lineage.versions_with_embeddings) == (2, [1, 2])
    lineage.label("stable", 1)  # back
    assert (Lineage.open(lineage.path).production, lineage.versions_with_embeddings) == (1, [1, 2])
    lineage.publish(artefact(3, 2), promote=False)
    assert (lineage.production, lineage.newest, stored(lineage)) == (1, 3, [1, 3])
    lineage.label("stable", 3)
    assert stored(lineage) == [1, 3]
    # Where there is a stable one, a promoted version takes its place.
    lineage.publish(artefact(4, 3))
    assert (lineage.production, lineage.labels, stored(lineage)) == (4, {"stable": 4}, [4])
    with pytest.raises(LineageError, match=r"Version 3 .* cannot be stable"):
        lineage.label("stable", 3)


def test_a_label_keeps_embeddings_over_publications(lineage: Lineage) -> None:
    lineage.label("team-a", 1)
    lineage.publish(artefact(2, 1))
    lineage.publish(artefact(3, 2))
    assert lineage.versions_with_embeddings == stored(lineage) == [1, 3]
    lineage.unlabel("team-a")
    assert lineage.versions_with_embeddings == [1, 3]  # until the next is published
    lineage.publish(artefact(4, 3))
    assert lineage.versions_with_embeddings == stored(lineage) == [4]


def test_a_withdrawn_version_leaves_its_number_and_an_identity(lineage: Lineage) -> None:
    lineage.publish(artefact(2, 1), promote=False)
    fingerprint = lineage.manifest(2).fingerprint
    lineage.withdraw(2, "  trained on last year's data ")
    again = Lineage.open(lineage.path)
    for found in (lineage, again):
        assert (found.newest, found.production, found.next_version) == (1, 1, 3)
        assert [m.version for m in found.versions] == [0, 1]
        assert found.withdrawn[2].reason == "trained on last year's data"
        assert found.withdrawn[2].fingerprint == fingerprint
        assert found.version_of(fingerprint) == 2
        assert torch.equal(reads(found, 1), vectors(1))
        assert found.chain.dim(2) == DIMS[1]
        with pytest.raises(UnknownVersionError, match=r"withdrawn .trained on last year"):
            found.view(2)
        with pytest.raises(UnknownVersionError, match="withdrawn"):
            found.manifest(2)
    assert stored(lineage) == [1]
    # The next one has the next number, and leads over the gap.
    assert again.publish(artefact(3, 1)) == 3
    torch.testing.assert_close(reads(again, 1), vectors(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reads(again, 0), vectors(0), rtol=1e-4, atol=1e-4)
    assert again.active_chain.newest == 2  # steps: 0 to 1, 1 to 3
    torch.testing.assert_close(again.active_chain.matrix(2, 0), again.chain.matrix(3, 0))
    map_forward = again.forward(0, 3)
    assert map_forward is not None
    weight, offset = map_forward
    moved = vectors(0).double() @ weight.T + offset
    torch.testing.assert_close(moved, vectors(3).double(), rtol=1e-2, atol=1e-2)
    with pytest.raises(LineageError, match="open it again"):
        lineage.publish(artefact(2, 1))


def test_the_diagnosis_goes_over_gaps(lineage: Lineage) -> None:
    lineage.publish(artefact(2, 1), promote=False)
    lineage.withdraw(2, "a fault")
    lineage.publish(artefact(3, 1))
    lineage.publish(artefact(4, 3))
    found = {r.version: r for r in diagnose_lineage(lineage)}
    assert list(found) == [0, 1, 3]
    for reading in found.values():
        assert reading.measured is not None
        assert reading.certificate is not None
        assert reading.measured.relative < 1e-4
        # A length to be relative to, even where the next number is that of the gap.
        assert 0 <= reading.certificate.relative < 1e-4
        assert reading.measured.objects == 5
    assert found[0].certificate is not None
    assert found[0].measured is not None
    assert found[0].certificate.terms[2] == 0
    assert set(found[0].measured.terms) == {1, 3, 4}
    assert set(found[1].history) == {1, 3, 4}
    lineage.label("keep", 3)
    lineage.label("stable", 4)
    lineage.retire(1)
    assert [r.version for r in diagnose_lineage(lineage)] == [0, 3]


def test_withdrawal_needs_embeddings_of_the_version_before(lineage: Lineage) -> None:
    before = (lineage.path / "lineage.json").read_bytes()
    with pytest.raises(LineageError, match="version 0 are no longer stored"):
        lineage.withdraw("newest", "a fault")
    with pytest.raises(LineageError, match="Only the newest version, 1, can be withdrawn, not 0"):
        lineage.withdraw(0, "a fault")
    with pytest.raises(LineageError, match="needs a reason"):
        lineage.withdraw(1, " ")
    assert (lineage.path / "lineage.json").read_bytes() == before
    assert torch.equal(reads(lineage, 1), vectors(1))


def test_a_retired_version_is_led_through_and_not_read(lineage: Lineage) -> None:
    lineage.label("old", 1)
    lineage.publish(artefact(2, 1))
    with pytest.raises(LineageError, match="labelled old"):
        lineage.retire(1)
    lineage.unlabel("old")
    lineage.retire("v1")
    again = Lineage.open(lineage.path)
    assert (again.retired, again.readable, again.versions_with_embeddings) == ([1], [0, 2], [2])
    assert [m.version for m in again.versions] == [0, 1, 2]
    for refused in (lambda: again.view(1), lambda: again.embeddings(SIDE, 1)):
        with pytest.raises(LineageError, match="retired"):
            refused()
    torch.testing.assert_close(reads(again, 0), vectors(0), rtol=1e-4, atol=1e-4)
    again.check()
    again.publish(artefact(3, 2))
    assert stored(again) == [3]


def test_consumers_hold_what_they_are_pinned_to(lineage: Lineage) -> None:
    lineage.publish(artefact(2, 1), promote=False)
    pin(lineage, ads="v0", search="newest", shop="stable")
    with pytest.raises(LineageError, match="pinned to it is search"):
        lineage.withdraw(2, "a fault")
    with pytest.raises(LineageError, match="pinned to it is ads"):
        lineage.retire(0)
    with pytest.raises(LineageError, match=r"'stable' .* cannot be removed: pinned to it is shop"):
        lineage.unlabel("stable")
    pin(lineage, shop="v1")
    lineage.retire(0)
    lineage.unlabel("stable")
    with pytest.raises(LineageError, match="pinned to it is shop"):
        lineage.retire(1)
    lineage.withdraw(2, "a fault")
    assert lineage.newest == 1


def test_a_change_against_an_older_state_is_refused(lineage: Lineage) -> None:
    stale = Lineage.open(lineage.path)
    lineage.label("team-a", 0)
    before = (lineage.path / "lineage.json").read_bytes()
    changes: list[Any] = [
        lambda: stale.label("team-b", 0),
        lambda: stale.retire(0),
        lambda: stale.withdraw(1, "a fault"),
    ]
    for change in changes:
        with pytest.raises(LineageError, match="has changed since it was opened"):
            change()
    assert (lineage.path / "lineage.json").read_bytes() == before
    with FileLock(lineage.path / ".lock"), pytest.raises(LineageError, match="Another process"):
        lineage.label("team-a", 1)
    # A long training is not lost because a label was moved meanwhile; the label is kept.
    assert stale.publish(artefact(2, 1), promote=False) == 2
    assert stale.labels == Lineage.open(lineage.path).labels == {"team-a": 0, "stable": 1}
    assert stale.versions_with_embeddings == [1, 2]


def _die_at(call: int, path: Path) -> None:
    left = call

    def counted(real: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return real(*args, **kwargs)

        return wrapper

    for name in ("replace", "fsync", "rmdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    Lineage.open(path).withdraw("newest", "a fault")
    os._exit(0)


def test_promotion_moves_production_there_and_back(lineage: Lineage) -> None:
    lineage.label("kept", "newest")
    newest = lineage.newest
    assert lineage.publish(artefact(newest + 1, newest), promote=False) == newest + 1
    assert lineage.production == newest
    assert lineage.promote() == lineage.production == newest + 1
    assert lineage.promote("kept") == lineage.production == newest
    with pytest.raises(UnknownVersionError):
        lineage.promote(99)


@pytest.mark.long
def test_death_at_any_moment_of_a_withdrawal_is_before_or_after_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not is_alone(request):
        return
    context = multiprocessing.get_context("fork")
    ends = set()
    for call in range(40):
        lineage = Lineage.create(tmp_path / str(call))
        lineage.publish(artefact(0, None))
        lineage.publish(artefact(1, 0), promote=False)
        process = context.Process(target=_die_at, args=(call, lineage.path))
        process.start()
        process.join()
        found = Lineage.open(lineage.path)
        found.check()
        ends.add((process.exitcode, found.newest))
        if found.newest == 0:
            assert found.publish(artefact(1, 0)) == 2
            kept = sorted(p.name for p in (found.path / "versions").iterdir())
            assert kept == ["0", "2"]
        if process.exitcode == 0:
            break
    assert ends == {(9, 1), (9, 0), (0, 0)}


def test_the_map_forward_is_what_least_squares_finds(tmp_path: Path) -> None:
    """Against numpy's solution on the same pairs; ids in another order, some on one side only."""
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(400, 3, generator=draw)
    plant = torch.randn(3, 4, generator=draw)
    noise = 0.01 * torch.randn(400, 4, generator=draw)
    new = old @ plant + 2.0 + noise
    order = torch.randperm(400, generator=draw)
    lineage = Lineage.create(tmp_path / "lineage")
    ids = pa.array(range(400))
    one = artefact(0, None)
    lineage.publish(
        Artefact(3, {SIDE: (ids.slice(0, 300), old[:300])}, None, one.metrics, one.recipe)
    )
    assert lineage.forward(0, 0) is not None
    back = LinearTransform.from_matrix(torch.randn(3, 4, generator=draw))
    shuffled = (ids.take(pa.array(order.numpy())).cast(pa.string()), new[order])
    lineage.publish(Artefact(4, {SIDE: shuffled}, back, one.metrics, one.recipe))
    found = lineage.forward(0, 1)
    assert found is not None
    weight, offset = found
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


def test_too_few_pairs_give_no_map_forward(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    one = artefact(0, None)
    few = (pa.array(range(8)), torch.randn(8, 3))
    lineage.publish(Artefact(3, {SIDE: few}, None, one.metrics, one.recipe))
    back = LinearTransform.from_matrix(torch.eye(3))
    lineage.publish(Artefact(3, {SIDE: few}, back, one.metrics, one.recipe))
    assert lineage.forward(0, 1) is None
    assert lineage.moments(1)[SIDE][0] == 8


def test_of_many_rows_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergram.lineage.publishing.publish_statistics.LEAST_ROWS", 90)
    lineage = Lineage.create(tmp_path / "lineage")
    one = artefact(0, None)
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(40_000, 2, generator=draw)  # more than a block
    ids = pa.array(range(40_000))
    lineage.publish(Artefact(2, {SIDE: (ids, old)}, None, one.metrics, one.recipe))
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    back = LinearTransform.from_matrix(turn.T)
    new = (ids.slice(0, 39_999), (old @ turn.T)[:39_999])
    lineage.publish(Artefact(2, {SIDE: new}, back, one.metrics, one.recipe))
    assert lineage.moments(1)[SIDE][0] == 79
    found = lineage.forward(0, 1)
    assert found is not None
    torch.testing.assert_close(found[0], turn.double(), rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_is_not_published(lineage: Lineage) -> None:
    broken = artefact(2, 1)
    broken.block(SIDE)[1][3, 0] = float("nan")
    with pytest.raises(DataError, match=r"object embedding of id 'id3' has a NaN"):
        lineage.publish(broken)
    wide = artefact(2, 1)
    ids, vectors = wide.block(SIDE)
    # A number, but none that can be written as float32.
    wide = replace(wide, embeddings={SIDE: (ids, vectors.double() * 1e300)})
    with pytest.raises(DataError, match=r"object embedding of id 'id0' has a NaN or an inf"):
        lineage.publish(wide)
    assert Lineage.open(lineage.path).newest == 1
    assert lineage.publish(artefact(2, 1)) == 2


def test_a_damaged_predecessor_costs_the_map_forward_alone(lineage: Lineage) -> None:
    path = lineage.stored(SIDE)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    lineage.publish(artefact(2, 1))
    assert lineage.forward(1, 2) is None
    assert lineage.forward(0, 1) is not None
