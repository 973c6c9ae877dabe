"""Lineages of every format that ever was, as they lie on people's disks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.canary_check import diagnose_lineage
from evergram.lineage.disk.lineage_record import FORMAT_VERSION, READABLE
from evergram.lineage.lineage import Lineage

GOLDEN = Path(__file__).parents[1] / "golden"
LINEAGES = sorted(p.parent for p in GOLDEN.glob("format-*/*/lineage.json"))
NAMES = [f"{p.parent.name}/{p.name}" for p in LINEAGES]


def format_of(path: Path) -> int:
    return int(path.parent.name.removeprefix("format-"))


def test_there_is_one_of_every_format() -> None:
    assert {format_of(path) for path in LINEAGES} == set(READABLE)
    assert set(json.loads((GOLDEN / "fingerprints.json").read_text())) == set(NAMES)


@pytest.mark.parametrize("path", LINEAGES, ids=NAMES)
def test_every_view_is_what_it_was(path: Path) -> None:
    lineage = Lineage.open(path)
    assert json.loads((path / "lineage.json").read_text())["format_version"] == format_of(path)
    expected = load_file(path.with_suffix(".safetensors"))
    ids = json.loads(path.with_suffix(".json").read_text())
    read = {
        f"{version}/{side}": lineage.view(version, lineage.newest).embeddings(side)
        for version in lineage.readable
        for side in lineage.manifest(version).embeddings
    }
    assert set(read) == set(expected)
    for name, (side_ids, vectors) in read.items():
        assert side_ids.to_pylist() == ids[name.split("/")[1]]
        torch.testing.assert_close(vectors, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", LINEAGES, ids=NAMES)
def test_every_file_is_read(path: Path) -> None:
    lineage = Lineage.open(path)
    lineage.check()
    errors = lineage.step_errors
    for manifest in lineage.versions:
        n = manifest.version
        assert "metrics" in lineage.metrics(n)
        assert lineage.canaries(n)
        if manifest.encoder is not None:
            lineage.encoder_parts(n)
        if format_of(path) < 3:
            assert lineage.moments(n) == {}
        else:
            assert set(lineage.moments(n)) == set(manifest.embeddings)
        if format_of(path) > 1 and n:
            assert errors[n].objects > 0
    forward = lineage.forward(0, lineage.newest)
    assert (forward is None) == (format_of(path) < 3)
    if forward is not None:
        assert forward[0].shape == (lineage.manifest(lineage.newest).dim, lineage.manifest(0).dim)
    for reading in diagnose_lineage(lineage):
        assert reading.measured is not None


@pytest.mark.parametrize("path", LINEAGES, ids=NAMES)
def test_fingerprints_never_change(path: Path) -> None:
    expected = json.loads((GOLDEN / "fingerprints.json").read_text())
    fingerprints = {str(m.version): m.fingerprint for m in Lineage.open(path).versions}
    assert fingerprints == expected[f"{path.parent.name}/{path.name}"]


@pytest.mark.parametrize("path", LINEAGES, ids=NAMES)
def test_an_old_lineage_goes_on_in_the_present_format(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lineage"
    shutil.copytree(path, copy)
    lineage = Lineage.open(copy)
    number, dim = lineage.next_version, lineage.manifest(lineage.newest).dim
    sides = lineage.manifest(lineage.newest).embeddings
    before = {side: lineage.embeddings(side, lineage.newest) for side in sides}
    publish_next(
        lineage,
        Artefact(
            dim=dim,
            embeddings=before,
            transform=LinearTransform.from_matrix(torch.eye(dim)),
            metrics={"metrics": {"model": {}}},
            recipe={},
        ),
        promote=False,
    )
    again = Lineage.open(copy)
    text = json.loads((copy / "lineage.json").read_text())
    assert (text["format_version"], again.newest) == (FORMAT_VERSION, number)
    assert again.production == again.labels["stable"] != number
    for side, (_, vectors) in before.items():
        assert torch.equal(again.embeddings(side, number)[1], vectors)
    again.withdraw(number, "made by a test")
    assert Lineage.open(copy).newest == Lineage.open(path).newest


def test_a_lineage_after_operations_is_read() -> None:
    lineage = Lineage.open(GOLDEN / "format-3" / "operated")
    assert lineage.labels == {"stable": 1, "canary": 3}
    assert (lineage.newest, lineage.production, lineage.next_version) == (3, 1, 4)
    assert (lineage.versions_with_embeddings, lineage.retired) == ([1, 3], [0])
    assert lineage.withdrawn[2].reason == "made to be withdrawn"


@pytest.mark.parametrize("path", LINEAGES, ids=NAMES)
def test_a_flipped_bit_in_any_file_is_noticed(path: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(p for p in path.rglob("*") if p.is_file())):
        if file.name in ("manifest.json", "lineage.json"):
            continue  # See the next test.
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        damaged = copy / file.relative_to(path)
        content = bytearray(damaged.read_bytes())
        content[len(content) // 3] ^= 4
        damaged.write_bytes(content)
        with pytest.raises(IntegrityError, match=file.name):
            Lineage.open(copy).check()


@pytest.mark.long
def test_a_flipped_bit_in_json_is_noticed_or_changes_nothing_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    shutil.copytree(GOLDEN / "format-3" / "operated", path)
    lineage = Lineage.open(path)
    expected = lineage.labels, lineage.readable, lineage.withdrawn.keys()
    manifests = {m.version: m.model_dump(exclude=NAMES_ONLY) for m in lineage.versions}
    for file in (path / "lineage.json", path / "versions" / "1" / "manifest.json"):
        content = file.read_bytes()
        noticed = 0
        for place in range(len(content)):
            flipped = bytearray(content)
            flipped[place] ^= 1
            file.write_bytes(flipped)
            try:
                lineage = Lineage.open(path)
                lineage.check()
                read = {m.version: m.model_dump(exclude=NAMES_ONLY) for m in lineage.versions}
                _ = lineage.chain
            except LineageError:
                noticed += 1
                continue
            assert (lineage.labels, lineage.readable, lineage.withdrawn.keys()) == expected
            assert read == manifests, (file.name, place)
        file.write_bytes(content)
        assert noticed > len(content) / 2


# What a manifest says for people alone.
NAMES_ONLY = {"created", "evergram", "name"}
