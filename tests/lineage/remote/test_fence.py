"""A publisher that slept or was cut off neither destroys nor mixes with what others published."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE, bucket_files, forget_mirror
from tests.support.publishing import publish_next

from evergram.errors import LineageError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage

LOCK = "publishing.lock"


@pytest.fixture(autouse=True)
def conditional(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage in memory takes the conditions of S3."""
    info = MemoryFileSystem.info

    def tagged(files: Any, path: str, **options: Any) -> dict[str, Any]:
        facts: dict[str, Any] = info(files, path, **options)
        if facts["type"] == "file":
            facts["ETag"] = hashlib.md5(files.cat_file(path)).hexdigest()
        return facts

    monkeypatch.setattr(MemoryFileSystem, "info", tagged)
    for name in ("pipe_file", "put_file"):
        real = getattr(MemoryFileSystem, name)

        def put(
            files: Any, one: str, two: Any, *, real: Any = real, name: str = name, **options: Any
        ) -> None:
            path = one if name == "pipe_file" else two
            options.pop("chunksize", None)
            if (tag := options.pop("IfMatch", None)) is not None and tag != tagged(files, path)[
                "ETag"
            ]:
                raise OSError(22, "At least one of the pre-conditions did not hold")
            real(files, one, two, **options)

        monkeypatch.setattr(MemoryFileSystem, name, put)


def asleep(
    monkeypatch: pytest.MonkeyPatch, operation: int, meanwhile: Callable[[], None]
) -> Callable[[], bool]:
    """Call `meanwhile` before the n-th operation that changes the storage or looks at the lock.

    Returns: whether it was called.
    """
    left = [operation]

    def before(path: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            meanwhile()

    for name in ("put_file", "pipe_file", "rm", "cat_file"):
        real = getattr(MemoryFileSystem, name)

        def act(files: Any, one: str, *args: Any, real: Any = real, **options: Any) -> Any:
            before(one)
            return real(files, one, *args, **options)

        monkeypatch.setattr(MemoryFileSystem, name, act)
    return lambda: left[0] < 0


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[], Any]) -> None:
    """Delete the lock, as docs/remote.md says, and act from another machine."""
    bucket = MemoryFileSystem()
    if bucket.exists(f"/bucket/shop/{LOCK}"):
        bucket.rm_file(f"/bucket/shop/{LOCK}")
    with monkeypatch.context() as patch:
        patch.setenv("EVERGRAM_CACHE", str(folder))
        act()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 9])
def test_a_publisher_that_slept_changes_nothing_that_another_published(
    step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It sleeps before an operation, later each time, until it is done before it would sleep."""
    mine, theirs, after = artefact(3, 2, seed=1), artefact(3, 2, seed=7), artefact(4, 3, seed=9)
    slept = 0
    for operation in range(0, 1000, step):
        publish_next(Lineage.create(PLACE, "shop"), artefact(2))
        first = Lineage.open(PLACE)

        def other() -> None:
            line = Lineage.open(PLACE)
            publish_next(line, after if line.newest else theirs)

        published = True
        with monkeypatch.context() as patch:
            act = partial(elsewhere, patch, tmp_path / str(operation), other)
            called = asleep(patch, operation, act)
            try:
                publish_next(first, mine)
            except LineageError:
                published = False
            if not called():
                break
        slept += 1
        forget_mirror()
        line = Lineage.open(PLACE)
        line.check()
        # The other is published whole; the first was published before it, or was refused.
        newest = after if published else theirs
        assert line.newest == (2 if published else 1)
        assert torch.equal(line.embeddings("query")[1], newest.block("query")[1])
        MemoryFileSystem().rm("/bucket/shop", recursive=True)
        forget_mirror()
    assert slept > 30 / step


def test_consumers_of_another_machine_are_not_lost(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry, slept = ConsumerRegistry.open(PLACE), 0
    for operation in range(100):
        name = f"mine-{operation}"

        def other(number: int = operation) -> None:
            ConsumerRegistry.open(PLACE).add(f"theirs-{number}", "v0", lineage.resolve)

        added = True
        with monkeypatch.context() as patch:
            act = partial(elsewhere, patch, tmp_path / str(operation), other)
            called = asleep(patch, operation, act)
            try:
                registry.add(name, "v0", lineage.resolve)
            except LineageError:
                added = False
            if not called():
                break
        slept += 1
        names = [c.name for c in ConsumerRegistry.open(PLACE).list()]
        assert f"theirs-{operation}" in names
        assert (name in names) == added
    assert slept > 4


def test_a_lock_that_a_lost_connection_left_is_taken_back_by_its_own_machine(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", lost)
        patch.setattr(MemoryFileSystem, "rm_file", lost)
        with pytest.warns(RuntimeWarning, match=LOCK), pytest.raises(LineageError, match="route"):
            publish_next(lineage, artefact(4, 3))
    assert LOCK in bucket_files()
    with monkeypatch.context() as patch:
        patch.setenv("EVERGRAM_CACHE", str(tmp_path / "other"))
        with pytest.raises(LineageError, match="Another process is publishing"):
            publish_next(Lineage.open(PLACE), artefact(4, 3))
    assert publish_next(lineage, artefact(4, 3)) == 2
    assert LOCK not in bucket_files()
