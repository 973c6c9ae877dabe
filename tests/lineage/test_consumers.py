"""Consumers are added, moved, removed, and known by their tokens."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.forging import forge
from tests.support.probe_files import add_probe

from evergram.errors import FormatError, IntegrityError, LineageError, UnknownVersionError
from evergram.lineage.consumers import Baseline, ConsumerRegistry, Probe, pinned_to
from evergram.lineage.lineage import Lineage


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """A probe whose files were never meant to be read."""
    model, data = tmp_path / "m.safetensors", tmp_path / "d.parquet"
    model.write_bytes(b"weights")
    data.write_bytes(b"rows")
    baseline = Baseline(version=2, value=0.8, objects=5)
    files = str(model), str(data)
    probe = Probe(model=files[0], data=files[1], side="candidate", metric="auc", min=0.7)
    return probe.model_copy(update={"baseline": baseline})


def test_names_that_differ_in_capitals_alone_are_refused(lineage: Lineage) -> None:
    """Where a disk does not tell them apart, one would remove the other's probe."""
    record = ConsumerRegistry.open(lineage.path)
    record.add("Ads", "v0", lineage.resolve)
    with pytest.raises(LineageError, match="Consumer 'Ads' already exists"):
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
    with pytest.raises(LineageError, match="The probe of 'b' reads v0; give one for v1"):
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
    with pytest.raises(LineageError, match="Consumer 'a' already"):
        registry.add("a", "v1", resolve)
    for pinned, allowed in (("v7", []), ("v0", ["nightly"])):
        with pytest.raises(UnknownVersionError):
            registry.add("b", pinned, resolve, allowed=allowed)
    gone = probe.model_copy(update={"data": str(tmp_path / "gone")})
    with pytest.raises(LineageError, match="the lineage is unchanged"):
        registry.add("b", "v0", resolve, probe=gone)
    assert (tmp_path / "consumers.json").read_bytes() == before
    assert [c.name for c in registry.list()] == ["a"]


GOOD: dict[str, Any] = {"name": "a", "pinned": "v0", "allowed": ["v0"], "since": "2026-01-31"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format_version 2; this Evergram reads 1"),
        ({"consumers": [GOOD | {"since": 3}]}, "since"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ({"consumers": [GOOD]}, "it has no checksum"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_what_is_wrong(
    tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "consumers.json"
    text = change
    if isinstance(change, dict):
        text = json.dumps({"format_version": 1, "consumers": [], **change})
    path.write_text(text)
    kind = FormatError if "format_version" in message else IntegrityError
    with pytest.raises(kind, match=message):
        ConsumerRegistry.open(tmp_path)


def test_a_flipped_bit_moves_no_consumer(tmp_path: Path) -> None:
    """ "v0" is one bit from "v1"."""
    ConsumerRegistry.open(tmp_path).add("a", "v0", resolve)
    path = tmp_path / "consumers.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"v0", b"v1"))
    with pytest.raises(IntegrityError, match="checksum"):
        ConsumerRegistry.open(tmp_path)
    for place in range(0, len(good) - 1, 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            registry = ConsumerRegistry.open(tmp_path)
        except IntegrityError:
            continue
        assert [(c.name, c.pinned) for c in registry.list()] == [("a", "v0")]


def test_a_file_that_was_written_earlier_is_read() -> None:
    registry = ConsumerRegistry.open(Path(__file__).parents[1] / "golden" / "consumers-1")
    ads, search = registry.list()
    assert (ads.name, ads.pinned, ads.allowed) == ("ads", "v0", ("v0", "stable"))
    assert (ads.since, ads.contact) == ("2026-11-21", "ads@example.org")
    assert (search.name, search.pinned, search.probe) == ("search", "stable", None)
    known = registry.authenticate("ExiE_CAlEKq0QSOi88cTbz4UiRS0PYzcoCQbmhqeQFQ")
    assert known is ads
    probe = ads.probe
    assert probe is not None
    assert (probe.side, probe.metric, probe.min, probe.max) == ("object", "auc", 0.75, None)
    assert probe.baseline == Baseline(version=1, value=0.8125, objects=2)
    assert [path.suffix for path in registry.probe_files(probe)] == [".safetensors", ".parquet"]


@pytest.mark.parametrize("part", ["probes", "probes/ads", "model"])
def test_a_probe_stays_in_the_lineage(
    lineage: Lineage, outside: Path, tmp_path: Path, part: str
) -> None:
    probe = add_probe(lineage, tmp_path)
    place = lineage.path / (probe.model if part == "model" else part)
    place.rename(outside / "copy")
    place.symlink_to(outside / "copy")
    with pytest.raises(IntegrityError, match="by a symbolic link"):
        ConsumerRegistry.open(lineage.path).probe_files(probe)
    if part != "model":
        before = sorted(outside.rglob("*"))
        with pytest.raises(IntegrityError, match="by a symbolic link"):
            ConsumerRegistry.open(lineage.path).remove("ads")
        assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "probes/../../x", "model", "probes//../../x", "probes"]
)
def test_a_forged_path_of_a_probe_is_refused(lineage: Lineage, tmp_path: Path, name: str) -> None:
    add_probe(lineage, tmp_path)

    def change(facts: dict[str, Any]) -> None:
        facts["consumers"][0]["probe"]["model"] = name

    forge(lineage.path / "consumers.json", change)
    forged = ConsumerRegistry.open(lineage.path).get("ads").probe
    assert forged is not None
    with pytest.raises(IntegrityError):
        ConsumerRegistry.open(lineage.path).probe_files(forged)


def files_of(root: Path) -> dict[str, bytes]:
    folder = root / "probes"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("parts", [["model", "data"], ["model"], ["data"]])
def test_a_probe_may_be_added_again_from_its_own_copies(
    tmp_path: Path, probe: Probe, parts: list[str]
) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    kept = registry.add("a", "v0", resolve, probe=probe).probe
    assert kept is not None
    stored = {part: str(tmp_path / getattr(kept, part)) for part in parts}
    again = registry.repin("a", "v0", resolve, probe=probe.model_copy(update=stored)).probe
    assert again is not None
    registry.probe_files(again)
    assert sorted(files_of(tmp_path).values()) == [b"rows", b"weights"]


def test_a_damaged_copy_is_mended_from_the_other_and_the_file_that_was_given(
    tmp_path: Path, probe: Probe
) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    kept = registry.add("a", "v0", resolve, probe=probe).probe
    assert kept is not None
    (tmp_path / kept.data).write_bytes(b"rowz")
    with pytest.raises(IntegrityError, match="by its SHA-256"):
        registry.probe_files(kept)
    own_model = probe.model_copy(update={"model": str(tmp_path / kept.model)})
    registry.repin("a", "v0", resolve, probe=own_model)
    assert sorted(files_of(tmp_path).values()) == [b"rows", b"weights"]


@pytest.mark.parametrize("failing", ["copy", "hash"])
def test_a_probe_that_cannot_be_added_again_leaves_its_copies(
    tmp_path: Path, probe: Probe, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    kept = registry.add("a", "v0", resolve, probe=probe).probe
    assert kept is not None

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if failing == "copy":
        monkeypatch.setattr(shutil, "copyfile", full)
    else:
        probe = probe.model_copy(update={"data_sha256": "0" * 64})
    with pytest.raises(LineageError):
        registry.repin("a", "v0", resolve, probe=probe)
    monkeypatch.undo()
    model, data = ConsumerRegistry.open(tmp_path).probe_files(kept)
    assert (model.read_bytes(), data.read_bytes()) == (b"weights", b"rows")


LABELS = {"stable": 1, "newest": 2}


def resolve(what: str) -> int:
    """Three versions and their labels."""
    digits = what.removeprefix("v")
    if digits.isdigit() and int(digits) < 3:
        return int(digits)
    if what not in LABELS:
        raise UnknownVersionError(f"no {what}")
    return LABELS[what]
