"""The files of probes stay in the folder of the lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.consumer_versions import resolve
from tests.support.forging import forge
from tests.support.probe_files import add_probe

from evergram.errors import IntegrityError
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


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


def test_a_damaged_probe_is_noticed(tmp_path: Path, probe: Probe) -> None:
    kept = ConsumerRegistry.open(tmp_path).add("a", "v0", resolve, probe=probe).probe
    assert kept is not None
    (tmp_path / kept.data).write_bytes(b"rowz")
    with pytest.raises(IntegrityError, match="SHA-256 differs"):
        ConsumerRegistry.open(tmp_path).probe_files(kept)
