"""Stamps differ after every change of a lineage or of its consumers, and else are equal."""

from __future__ import annotations

from pathlib import Path

from tests.support.lineages import lineage_of

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.change_watch import ChangeWatch


def test_each_file_has_a_stamp_of_its_own(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    watch = ChangeWatch(tmp_path / "line")
    record, consumers = watch.stamps()
    assert consumers == ()
    assert watch.stamps() == (record, consumers)
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve)
    assert watch.stamps()[0] == record
    added = watch.stamps()[1]
    assert added != consumers
    lineage.label("kept", 0)
    assert watch.stamps()[0] != record
    assert watch.stamps()[1] == added


def test_a_remote_lineage_is_watched_by_its_content(tmp_path: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe_file("/watched/lineage.json", b"one")
    watch = ChangeWatch("memory://watched")
    assert watch.folder is None
    assert watch.stamps() == ((b"one",), ())
    files.pipe_file("/watched/lineage.json", b"two")
    assert watch.stamps() == ((b"two",), ())
