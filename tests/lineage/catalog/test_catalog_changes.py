"""Labels move, and versions are withdrawn and retired, each in one step."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from tests.support.dying import is_alone
from tests.support.exact_versions import DIMS, SIDE, exact_lineage, exact_version, vectors_of
from tests.support.publishing import publish_next
from torch import Tensor

from evergram.errors import (
    LineageError,
    UnknownVersionError,
)
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 and 1."""
    return exact_lineage(tmp_path / "lineage")


def stored(lineage: Lineage) -> list[int]:
    return sorted(int(p.name) for p in (lineage.path / "embeddings").iterdir())


def pin(lineage: Lineage, **consumers: str) -> None:
    registry = ConsumerRegistry.open(lineage.path)
    for consumer in registry.list():
        registry.remove(consumer.name)
    for name, to in consumers.items():
        registry.add(name, to, lineage.resolve)


def reads(lineage: Lineage, version: int | str, source: int | None = None) -> Tensor:
    return lineage.view(version, source).embeddings(SIDE)[1]


def test_a_version_that_is_not_promoted_is_beside_the_one_in_production(lineage: Lineage) -> None:
    assert (lineage.labels, lineage.production) == ({}, 1)
    publish_next(lineage, exact_version(2, 1), promote=False)
    again = Lineage.open(lineage.path)
    for line in (lineage, again):
        assert (line.newest, line.production) == (2, 1)
        assert line.labels == {"stable": 1}
        assert line.resolve(None) == line.resolve("stable") == 1
        assert line.versions_with_embeddings == stored(line) == [1, 2]
        # Each by its own embeddings, and the older one through the chain too.
        assert torch.equal(line.embeddings(SIDE, 1)[1], vectors_of(1))
        assert torch.equal(line.embeddings(SIDE, 2)[1], vectors_of(2))
        assert torch.equal(reads(line, "stable", source=1), vectors_of(1))
        torch.testing.assert_close(reads(line, "stable"), vectors_of(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(reads(line, 0, source=1), vectors_of(0), rtol=1e-4, atol=1e-4)
        with pytest.raises(LineageError, match=r"embeddings of version 0 .* those of 1, 2 are"):
            line.embeddings(SIDE, 0)
        with pytest.raises(UnknownVersionError, match="back only"):
            line.view(2, source=1)


def test_promotion_and_roll_back(lineage: Lineage) -> None:
    publish_next(lineage, exact_version(2, 1), promote=False)
    lineage.label("stable", "newest")
    assert (lineage.production, lineage.versions_with_embeddings) == (2, [1, 2])
    lineage.label("stable", 1)  # back
    assert (Lineage.open(lineage.path).production, lineage.versions_with_embeddings) == (1, [1, 2])
    publish_next(lineage, exact_version(3, 2), promote=False)
    assert (lineage.production, lineage.newest, stored(lineage)) == (1, 3, [1, 3])
    lineage.label("stable", 3)
    assert stored(lineage) == [1, 3]
    # Where there is a stable one, a promoted version takes its place.
    publish_next(lineage, exact_version(4, 3))
    assert (lineage.production, lineage.labels, stored(lineage)) == (4, {"stable": 4}, [4])
    with pytest.raises(LineageError, match=r"Version 3 .* cannot be stable"):
        lineage.label("stable", 3)


def test_a_label_keeps_embeddings_over_publications(lineage: Lineage) -> None:
    lineage.label("team-a", 1)
    publish_next(lineage, exact_version(2, 1))
    publish_next(lineage, exact_version(3, 2))
    assert lineage.versions_with_embeddings == stored(lineage) == [1, 3]
    lineage.unlabel("team-a")
    assert lineage.versions_with_embeddings == [1, 3]  # until the next is published
    publish_next(lineage, exact_version(4, 3))
    assert lineage.versions_with_embeddings == stored(lineage) == [4]


def test_a_withdrawn_version_leaves_its_number_and_an_identity(lineage: Lineage) -> None:
    publish_next(lineage, exact_version(2, 1), promote=False)
    fingerprint = lineage.manifest(2).fingerprint
    lineage.withdraw(2, "  trained on last year's data ")
    again = Lineage.open(lineage.path)
    for line in (lineage, again):
        assert (line.newest, line.production, line.next_version) == (1, 1, 3)
        assert [m.version for m in line.versions] == [0, 1]
        assert line.withdrawn[2].reason == "trained on last year's data"
        assert line.withdrawn[2].fingerprint == fingerprint
        assert line.version_of(fingerprint) == 2
        assert torch.equal(reads(line, 1), vectors_of(1))
        assert line.chain.dim(2) == DIMS[1]
        with pytest.raises(UnknownVersionError, match=r"withdrawn .trained on last year"):
            line.view(2)
        with pytest.raises(UnknownVersionError, match="withdrawn"):
            line.manifest(2)
    assert stored(lineage) == [1]
    # The next one has the next number, and leads over the gap.
    assert publish_next(again, exact_version(3, 1)) == 3
    torch.testing.assert_close(reads(again, 1), vectors_of(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reads(again, 0), vectors_of(0), rtol=1e-4, atol=1e-4)
    assert again.active_chain.newest == 2  # steps: 0 to 1, 1 to 3
    torch.testing.assert_close(again.active_chain.matrix(2, 0), again.chain.matrix(3, 0))
    map_forward = again.forward(0, 3)
    assert map_forward is not None
    weight, offset = map_forward
    moved = vectors_of(0).double() @ weight.T + offset
    torch.testing.assert_close(moved, vectors_of(3).double(), rtol=1e-2, atol=1e-2)
    with pytest.raises(LineageError, match="open it again"):
        publish_next(lineage, exact_version(2, 1))


def test_withdrawal_needs_embeddings_of_the_version_before(lineage: Lineage) -> None:
    before = (lineage.path / "lineage.json").read_bytes()
    with pytest.raises(LineageError, match="version 0 are no longer stored"):
        lineage.withdraw("newest", "a fault")
    with pytest.raises(LineageError, match="Only the newest version, 1, can be withdrawn, not 0"):
        lineage.withdraw(0, "a fault")
    with pytest.raises(LineageError, match="needs a reason"):
        lineage.withdraw(1, " ")
    assert (lineage.path / "lineage.json").read_bytes() == before
    assert torch.equal(reads(lineage, 1), vectors_of(1))


def test_the_chain_leads_through_a_retired_version_that_is_not_read(lineage: Lineage) -> None:
    lineage.label("old", 1)
    publish_next(lineage, exact_version(2, 1))
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
    torch.testing.assert_close(reads(again, 0), vectors_of(0), rtol=1e-4, atol=1e-4)
    again.check()
    publish_next(again, exact_version(3, 2))
    assert stored(again) == [3]


def test_a_version_that_consumers_are_pinned_to_stays(lineage: Lineage) -> None:
    publish_next(lineage, exact_version(2, 1), promote=False)
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
    assert publish_next(stale, exact_version(2, 1), promote=False) == 2
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
    assert publish_next(lineage, exact_version(newest + 1, newest), promote=False) == newest + 1
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
        publish_next(lineage, exact_version(0, None))
        publish_next(lineage, exact_version(1, 0), promote=False)
        process = context.Process(target=_die_at, args=(call, lineage.path))
        process.start()
        process.join()
        reopened = Lineage.open(lineage.path)
        reopened.check()
        ends.add((process.exitcode, reopened.newest))
        if reopened.newest == 0:
            assert publish_next(reopened, exact_version(1, 0)) == 2
            folders = sorted(p.name for p in (reopened.path / "versions").iterdir())
            assert folders == ["0", "2"]
        if process.exitcode == 0:
            break
    assert ends == {(9, 1), (9, 0), (0, 0)}


@pytest.mark.parametrize("name", ["Stable", "NEWEST", "V1", "prod"])
def test_labels_that_differ_in_capitals_alone_are_refused(lineage: Lineage, name: str) -> None:
    lineage.label("Prod", 0)
    with pytest.raises(LineageError, match="cannot be a label"):
        lineage.label(name, 1)
