"""A lineage that was published earlier, as it lies on people's disks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support.golden import TRAINED
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage

EXPECTED: dict[str, Any] = json.loads(TRAINED.with_name("expected.json").read_text())
# What a manifest says for people alone.
NAMES_ONLY = {"created", "evergram", "name"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TRAINED, tmp_path / "lineage"))


def test_every_view_is_what_it_was() -> None:
    lineage = Lineage.open(TRAINED)
    assert [m.fingerprint for m in lineage.versions] == EXPECTED["fingerprints"]
    for name, vectors in load_file(TRAINED.with_name("expected.safetensors")).items():
        version, side = name.split("/")
        ids, read = lineage.view(int(version)).embeddings(side)
        assert ids.to_pylist() == EXPECTED["ids"][side]
        torch.testing.assert_close(read, vectors, rtol=1e-5, atol=1e-6)


def test_every_file_is_read() -> None:
    lineage = Lineage.open(TRAINED)
    lineage.check()
    for n, manifest in enumerate(lineage.versions):
        assert "metrics" in lineage.metrics(n)
        assert set(lineage.canaries(n)) == set(lineage.moments(n)) == set(manifest.embeddings)
        assert lineage.query_form(n) is not None
        lineage.encoder_parts(n)
    assert all(lineage.step_errors[n].objects > 0 for n in (1, 2))
    assert lineage.forward(0, 2) is not None
    assert lineage.pair_history.untested is None


def test_it_goes_on(copy: Path) -> None:
    lineage = Lineage.open(copy)
    before = {side: lineage.embeddings(side) for side in lineage.manifest(2).embeddings}
    publish_next(
        lineage,
        Artefact(
            dim=3,
            embeddings=before,
            transform=LinearTransform.from_matrix(torch.eye(3)),
            metrics={"metrics": {"model": {}}},
            recipe={},
        ),
        promote=False,
    )
    again = Lineage.open(copy)
    assert (again.newest, again.production) == (3, 2)
    for side, (_, vectors) in before.items():
        assert torch.equal(again.embeddings(side, 3)[1], vectors)


def test_a_flipped_bit_in_any_file_is_noticed(copy: Path) -> None:
    for file in sorted(p for p in copy.rglob("*") if p.is_file()):
        if file.name in ("manifest.json", "lineage.json"):
            continue  # See the next test.
        whole = file.read_bytes()
        content = bytearray(whole)
        content[len(content) // 3] ^= 4
        file.write_bytes(content)
        with pytest.raises(IntegrityError, match=file.name):
            Lineage.open(copy).check()
        file.write_bytes(whole)


@pytest.mark.long
def test_a_flipped_bit_in_json_is_noticed_or_changes_nothing_that_is_read(copy: Path) -> None:
    opened = Lineage.open(copy)
    opened.label("canary", 1)
    opened.retire(0)
    expected = opened.labels, opened.readable, opened.withdrawn.keys()
    manifests = {m.version: m.model_dump(exclude=NAMES_ONLY) for m in opened.versions}
    for file in (copy / "lineage.json", copy / "versions" / "1" / "manifest.json"):
        content = file.read_bytes()
        noticed = 0
        for place in range(len(content)):
            flipped = bytearray(content)
            flipped[place] ^= 1
            file.write_bytes(flipped)
            try:
                lineage = Lineage.open(copy)
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
