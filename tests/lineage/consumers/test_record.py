"""Who reads what: written down, registry again, known by a token that is nowhere in the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.consumer_versions import LABELS, resolve

from evergram.errors import FormatError, IntegrityError
from evergram.lineage.consumers.record import Baseline, Probe
from evergram.lineage.consumers.registry import ConsumerRegistry, pinned_to


def test_a_label_that_is_gone_pins_nobody_to_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConsumerRegistry.open(tmp_path).add("ads", "stable", resolve, allowed=["v0"])
    monkeypatch.delitem(LABELS, "stable")
    assert pinned_to(tmp_path, resolve) == {}
    assert ConsumerRegistry.open(tmp_path).get("ads").allowed == ("stable", "v0")


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


def test_the_limit_fits_the_metric(probe: Probe) -> None:
    with pytest.raises(ValueError, match="rmse takes max as its limit"):
        Probe.model_validate({**probe.model_dump(), "metric": "rmse"})


def test_a_file_that_was_written_earlier_is_read() -> None:
    registry = ConsumerRegistry.open(Path(__file__).parents[2] / "golden" / "consumers-1")
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
