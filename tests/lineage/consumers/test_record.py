"""Who reads what: written down, found again, known by a token that is nowhere in the files."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from evergram.errors import FormatError, IntegrityError, LineageError, UnknownVersionError
from evergram.lineage.consumers import registry as module
from evergram.lineage.consumers.record import Baseline, Probe
from evergram.lineage.consumers.registry import ConsumerRegistry, pinned_to

LABELS = {"stable": 1, "newest": 2}


def resolve(what: str) -> int:
    """Three versions and their labels."""
    digits = what.removeprefix("v")
    if digits.isdigit() and int(digits) < 3:
        return int(digits)
    if what not in LABELS:
        raise UnknownVersionError(f"no {what}")
    return LABELS[what]


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    model, data = tmp_path / "m.safetensors", tmp_path / "d.parquet"
    model.write_bytes(b"weights")
    data.write_bytes(b"rows")
    return Probe(
        model=str(model),
        data=str(data),
        side="candidate",
        metric="auc",
        min=0.7,
        baseline=Baseline(version=2, value=0.8, objects=5),
    )


def test_what_is_written_is_read(tmp_path: Path, probe: Probe) -> None:
    found = ConsumerRegistry.open(tmp_path / "l")
    assert found.list() == ()
    found.add("search", "0", resolve, contact="s@x.org", probe=probe)
    found.add("ads", "stable", resolve, allowed=["v2", "1", "v1"])
    again = ConsumerRegistry.open(tmp_path / "l")
    ads, search = again.list()
    assert (ads.name, ads.pinned, ads.allowed) == ("ads", "stable", ("stable", "v2", "v1"))
    assert ads.may_read(resolve) == {1, 2}
    assert (search.pinned, search.allowed, search.contact) == ("v0", ("v0",), "s@x.org")
    assert search.probe is not None
    assert search.probe.baseline == probe.baseline
    model, data = again.probe_files(search.probe)
    assert model.is_relative_to(tmp_path / "l" / "probes" / "search")
    assert (model.read_bytes(), data.read_bytes()) == (b"weights", b"rows")
    assert pinned_to(tmp_path / "l", resolve) == {"ads": 1, "search": 0}


def test_a_label_that_is_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ConsumerRegistry.open(tmp_path).add("ads", "stable", resolve, allowed=["v0"])
    monkeypatch.delitem(LABELS, "stable")
    assert pinned_to(tmp_path, resolve) == {}
    assert ConsumerRegistry.open(tmp_path).get("ads").may_read(resolve) == {0}


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
    found = ConsumerRegistry.open(tmp_path)
    for name in ("a", "b"):
        found.add(name, "v0", resolve)
    old = found.issue_token("a")
    token = found.issue_token("a")
    again = ConsumerRegistry.open(tmp_path)
    known = again.authenticate(token)
    assert known is not None
    assert known.name == "a"
    for wrong in (old, token[:-1], "", "x" * 43):
        assert again.authenticate(wrong) is None
    for path in tmp_path.iterdir():
        assert token not in path.read_text()


def test_moving_to_another_version(tmp_path: Path, probe: Probe) -> None:
    found = ConsumerRegistry.open(tmp_path)
    found.add("a", "v0", resolve, allowed=["stable"])
    moved = found.repin("a", "2", resolve)
    assert (moved.pinned, moved.allowed) == ("v2", ("v2", "stable"))
    found.add("b", "v0", resolve, probe=probe)
    with pytest.raises(LineageError, match="The probe of 'b' reads v0; give the one for v1"):
        found.repin("b", "v1", resolve)
    before = found.get("b").probe
    assert before is not None
    Path(probe.model).write_bytes(b"other weights")
    after = found.repin("b", "v1", resolve, probe=probe).probe
    assert after is not None
    assert after.model_sha256 != before.model_sha256
    assert found.probe_files(after)[0].read_bytes() == b"other weights"
    assert not (tmp_path / before.model).exists()
    assert found.repin("b", "v2", resolve, drop_probe=True).probe is None
    assert not (tmp_path / after.model).exists()


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path, probe: Probe) -> None:
    found = ConsumerRegistry.open(tmp_path)
    found.add("a", "v0", resolve)
    before = (tmp_path / "consumers.json").read_bytes()
    for name in ("", "a/b", "..", "a b", "-é", ".a", "a" * 129, "a\n"):
        with pytest.raises(LineageError, match="cannot be the name"):
            found.add(name, "v0", resolve)
    with pytest.raises(LineageError, match="a consumer 'a' already"):
        found.add("a", "v1", resolve)
    for pinned, allowed in (("v7", []), ("v0", ["nightly"])):
        with pytest.raises(UnknownVersionError):
            found.add("b", pinned, resolve, allowed=allowed)
    gone = probe.model_copy(update={"data": str(tmp_path / "gone")})
    with pytest.raises(LineageError, match="its consumers are as they were"):
        found.add("b", "v0", resolve, probe=gone)
    assert (tmp_path / "consumers.json").read_bytes() == before
    assert [c.name for c in found.list()] == ["a"]


def test_a_publication_under_way_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(LineageError, match="Another process is publishing"),
    ):
        ConsumerRegistry.open(tmp_path).add("a", "v0", resolve)


GOOD: dict[str, Any] = {
    "name": "a",
    "pinned": "v0",
    "allowed": ["v0"],
    "since": "2026-01-31",
    "contact": None,
    "token_sha256": None,
    "probe": None,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format_version 2; this Evergram reads 1"),
        ({"consumers": [GOOD, GOOD]}, "'a' is there twice"),
        ({"consumers": [GOOD | {"pinned": "v1"}]}, "not among the versions it may read"),
        ({"consumers": [GOOD | {"since": "soon"}]}, "since"),
        ({"consumers": [GOOD | {"name": "a/../b"}]}, "name"),
        ({"consumers": [GOOD | {"more": 1}]}, "more"),
        ({"consumers": [GOOD | {"contact": 1}]}, "contact"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ({"consumers": [GOOD]}, "it has no checksum"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "consumers.json"
    text = change
    if isinstance(change, dict):
        text = json.dumps({"format_version": 1, "consumers": [], **change})
    path.write_text(text)
    kind = FormatError if "format_version" in message else IntegrityError
    with pytest.raises(kind, match=message):
        ConsumerRegistry.open(tmp_path)


def test_a_flipped_bit_moves_nobody(tmp_path: Path) -> None:
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
            found = ConsumerRegistry.open(tmp_path)
        except IntegrityError:
            continue
        assert [(c.name, c.pinned) for c in found.list()] == [("a", "v0")]


def test_a_damaged_probe_is_noticed(tmp_path: Path, probe: Probe) -> None:
    kept = ConsumerRegistry.open(tmp_path).add("a", "v0", resolve, probe=probe).probe
    assert kept is not None
    (tmp_path / kept.data).write_bytes(b"rowz")
    with pytest.raises(IntegrityError, match="SHA-256 differs"):
        ConsumerRegistry.open(tmp_path).probe_files(kept)


def test_the_limit_fits_the_metric(probe: Probe) -> None:
    with pytest.raises(ValueError, match="rmse takes max as its limit"):
        Probe.model_validate({**probe.model_dump(), "metric": "rmse"})


def test_format_1_is_read_as_it_was_written() -> None:
    """The file and its probe are kept as the first Evergram that had them wrote them."""
    found = ConsumerRegistry.open(Path(__file__).parents[2] / "golden" / "consumers-1")
    ads, search = found.list()
    assert (ads.name, ads.pinned, ads.allowed) == ("ads", "v0", ("v0", "stable"))
    assert (ads.since, ads.contact) == ("2026-11-21", "ads@example.org")
    assert (search.name, search.pinned, search.probe) == ("search", "stable", None)
    known = found.authenticate("ExiE_CAlEKq0QSOi88cTbz4UiRS0PYzcoCQbmhqeQFQ")
    assert known is ads
    probe = ads.probe
    assert probe is not None
    assert (probe.side, probe.metric, probe.min, probe.max) == ("object", "auc", 0.75, None)
    assert probe.baseline == Baseline(version=1, value=0.8125, objects=2)
    assert [path.suffix for path in found.probe_files(probe)] == [".safetensors", ".parquet"]
