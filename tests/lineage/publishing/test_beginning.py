"""A lineage that begins with two versions has both or is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE
from tests.support.publishing import publish_next

from evergram.errors import ShapeError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


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
