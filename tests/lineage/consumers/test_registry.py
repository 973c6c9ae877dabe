"""Consumers are added, moved, removed, and known by their tokens."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from filelock import FileLock
from tests.support.consumer_versions import resolve

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.consumers import registry
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry, pinned_to
from evergram.lineage.lineage import Lineage


def test_names_that_differ_in_capitals_alone_are_refused(lineage: Lineage) -> None:
    """Where a disk does not tell them apart, one would remove the other's probe."""
    record = ConsumerRegistry.open(lineage.path)
    record.add("Ads", "v0", lineage.resolve)
    with pytest.raises(LineageError, match="There is a consumer 'Ads' already"):
        record.add("ads", "v1", lineage.resolve)


def test_consumers_are_read_as_they_were_added(tmp_path: Path, probe: Probe) -> None:
    registry = ConsumerRegistry.open(tmp_path / "l")
    assert registry.list() == ()
    registry.add("search", "0", resolve, contact="s@x.org", probe=probe)
    registry.add("ads", "stable", resolve, allowed=["v2", "1", "v1"])
    again = ConsumerRegistry.open(tmp_path / "l")
    ads, search = again.list()
    assert (ads.name, ads.pinned, ads.allowed) == ("ads", "stable", ("stable", "v2", "v1"))
    assert (search.pinned, search.allowed, search.contact) == ("v0", ("v0",), "s@x.org")
    assert search.probe is not None
    assert search.probe.baseline == probe.baseline
    model, data = again.probe_files(search.probe)
    assert model.is_relative_to(tmp_path / "l" / "probes" / "search")
    assert (model.read_bytes(), data.read_bytes()) == (b"weights", b"rows")
    assert pinned_to(tmp_path / "l", resolve) == {"ads": 1, "search": 0}


def test_a_change_of_another_process_is_not_undone(tmp_path: Path) -> None:
    first, second = ConsumerRegistry.open(tmp_path), ConsumerRegistry.open(tmp_path)
    first.add("a", "v0", resolve)
    second.add("b", "v1", resolve)
    first.remove("a")
    assert [c.name for c in first.list()] == ["b"]
    with pytest.raises(LineageError, match="no consumer 'a'; the consumers are: b"):
        second.remove("a")


def test_many_processes_add_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(tmp_path, f"c{i}")) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert [c.name for c in ConsumerRegistry.open(tmp_path).list()] == [f"c{i}" for i in range(6)]


def _add(path: Path, name: str) -> None:
    ConsumerRegistry.open(path).add(name, "v0", resolve)


def test_a_token_is_known_and_not_kept(tmp_path: Path) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    for name in ("a", "b"):
        registry.add(name, "v0", resolve)
    old = registry.issue_token("a")
    token = registry.issue_token("a")
    again = ConsumerRegistry.open(tmp_path)
    known = again.authenticate(token)
    assert known is not None
    assert known.name == "a"
    for wrong in (old, token[:-1], "", "x" * 43):
        assert again.authenticate(wrong) is None
    for path in tmp_path.iterdir():
        assert token not in path.read_text()


def test_a_consumer_moves_to_another_version_with_a_probe_of_its_own(
    tmp_path: Path, probe: Probe
) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    registry.add("a", "v0", resolve, allowed=["stable"])
    moved = registry.repin("a", "2", resolve)
    assert (moved.pinned, moved.allowed) == ("v2", ("v2", "stable"))
    registry.add("b", "v0", resolve, probe=probe)
    with pytest.raises(LineageError, match="The probe of 'b' reads v0; give the one for v1"):
        registry.repin("b", "v1", resolve)
    before = registry.get("b").probe
    assert before is not None
    Path(probe.model).write_bytes(b"other weights")
    after = registry.repin("b", "v1", resolve, probe=probe).probe
    assert after is not None
    assert after.model_sha256 != before.model_sha256
    assert registry.probe_files(after)[0].read_bytes() == b"other weights"
    assert not (tmp_path / before.model).exists()
    assert registry.repin("b", "v2", resolve, drop_probe=True).probe is None
    assert not (tmp_path / after.model).exists()


def test_a_refused_consumer_changes_nothing(tmp_path: Path, probe: Probe) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    registry.add("a", "v0", resolve)
    before = (tmp_path / "consumers.json").read_bytes()
    for name in ("", "a/b", "..", "a b", "-é", ".a", "a" * 129, "a\n"):
        with pytest.raises(LineageError, match="cannot be the name"):
            registry.add(name, "v0", resolve)
    with pytest.raises(LineageError, match="a consumer 'a' already"):
        registry.add("a", "v1", resolve)
    for pinned, allowed in (("v7", []), ("v0", ["nightly"])):
        with pytest.raises(UnknownVersionError):
            registry.add("b", pinned, resolve, allowed=allowed)
    gone = probe.model_copy(update={"data": str(tmp_path / "gone")})
    with pytest.raises(LineageError, match="its consumers are as they were"):
        registry.add("b", "v0", resolve, probe=gone)
    assert (tmp_path / "consumers.json").read_bytes() == before
    assert [c.name for c in registry.list()] == ["a"]


def test_a_change_waits_for_a_publication_and_then_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.1)
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(LineageError, match="Another process is publishing"),
    ):
        ConsumerRegistry.open(tmp_path).add("a", "v0", resolve)
