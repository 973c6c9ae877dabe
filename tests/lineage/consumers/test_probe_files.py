"""The files of probes stay in the folder of the lineage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.consumer_versions import resolve
from tests.support.forging import forge
from tests.support.probe_files import add_probe

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.consumers import probe_files
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
    before = files_of(tmp_path)
    stored = {part: str(tmp_path / getattr(kept, part)) for part in parts}
    again = registry.repin("a", "v0", resolve, probe=probe.model_copy(update=stored)).probe
    assert again == kept
    assert files_of(tmp_path) == before
    assert sorted(before.values()) == [b"rows", b"weights"]


def test_a_damaged_copy_is_mended_from_the_other_and_the_file_that_was_given(
    tmp_path: Path, probe: Probe
) -> None:
    registry = ConsumerRegistry.open(tmp_path)
    kept = registry.add("a", "v0", resolve, probe=probe).probe
    assert kept is not None
    before = files_of(tmp_path)
    (tmp_path / kept.data).write_bytes(b"rowz")
    own_model = probe.model_copy(update={"model": str(tmp_path / kept.model)})
    assert registry.repin("a", "v0", resolve, probe=own_model).probe == kept
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("failing", ["copy", "exchange", "hash"])
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
    elif failing == "exchange":
        monkeypatch.setattr(probe_files, "exchange_folders", full)
    else:
        probe = probe.model_copy(update={"data_sha256": "0" * 64})
    with pytest.raises(LineageError):
        registry.repin("a", "v0", resolve, probe=probe)
    monkeypatch.undo()
    model, data = ConsumerRegistry.open(tmp_path).probe_files(kept)
    assert (model.read_bytes(), data.read_bytes()) == (b"weights", b"rows")
