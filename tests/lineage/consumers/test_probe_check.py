"""A version is published only with a reading of every consumer's probe as it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.consumer_versions import LABELS, resolve

from evergram.errors import LineageError
from evergram.lineage.consumers.probe_check import refuse_unprobed
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry

NEXT = 3


def add(folder: Path, pinned: str, probe: Probe | None) -> dict[str, Any]:
    """Add a consumer. Returns: the reading of its probe on the next version."""
    consumer = ConsumerRegistry.open(folder).add("ads", pinned, resolve, probe=probe)
    if consumer.probe is None:
        return {}
    return {
        "consumer": "ads",
        "pinned": consumer.pinned,
        "source": NEXT,
        "version": NEXT if pinned == "newest" else resolve(pinned),
        "model_sha256": consumer.probe.model_sha256,
        "data_sha256": consumer.probe.data_sha256,
        "value": 0.8,
    }


def check(folder: Path, *readings: dict[str, Any]) -> None:
    refuse_unprobed(str(folder), {"probes": list(readings)}, NEXT, resolve)


@pytest.mark.parametrize("pinned", ["v0", "stable", "newest"])
def test_the_reading_must_be_of_this_version_and_probe(
    tmp_path: Path, probe: Probe, pinned: str
) -> None:
    reading = add(tmp_path, pinned, probe)
    check(tmp_path, reading, {"consumer": "another"})
    others: list[dict[str, Any]] = [
        {"consumer": "another"},
        {"pinned": "v1"},
        {"source": 2},
        {"version": 2},
        {"model_sha256": "0" * 64},
        {"data_sha256": "0" * 64},
    ]
    for other in others:
        with pytest.raises(LineageError, match="the probe of ads has not been run on it"):
            check(tmp_path, {**reading, **other})
    with pytest.raises(LineageError, match=r"publish it by evergram\.publish"):
        refuse_unprobed(str(tmp_path), {}, NEXT, resolve)


def test_a_consumer_without_a_probe_needs_no_reading(tmp_path: Path) -> None:
    add(tmp_path, "v0", None)
    check(tmp_path)


def test_a_probe_that_could_not_be_run_counts_if_its_label_is_gone(
    tmp_path: Path, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = add(tmp_path, "stable", probe)
    monkeypatch.delitem(LABELS, "stable")
    check(tmp_path, {**reading, "version": None, "value": None})
    with pytest.raises(LineageError, match="ads"):
        check(tmp_path, {**reading, "version": 1})
