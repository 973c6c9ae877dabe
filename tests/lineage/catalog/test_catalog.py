"""Versions by number and by label, as they are on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.artefacts import shop_of_three

from evergram.errors import (
    FormatError,
    IntegrityError,
    LineageError,
)
from evergram.lineage.lineage import Lineage


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "ü", "a\n", "x" * 129, "shop@v0"])
def test_a_lineage_has_a_name_that_can_be_asked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(LineageError, match="cannot be the name of a lineage"):
        Lineage.create(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


@pytest.mark.parametrize("name", ["lineage.json", "versions/1/manifest.json"])
def test_damaged_json_is_noticed(lineage: Lineage, name: str) -> None:
    (lineage.path / name).write_text("{")
    with pytest.raises(IntegrityError, match="damaged"):
        Lineage.open(lineage.path)


def test_format_1_is_still_read(lineage: Lineage) -> None:
    expected = lineage.view(0).embeddings("query")[1]
    for path in (lineage.path, *(lineage.path / "versions").iterdir()):
        file = path / ("lineage.json" if path == lineage.path else "manifest.json")
        facts = json.loads(file.read_text())
        if "format_version" in facts:
            facts = {k: facts[k] for k in ("name", "versions")} | {"format_version": 1}
        else:
            del facts["fingerprint"], facts["check"]
            facts["transform"] = facts["transform"] and facts["transform"]["kind"]
        file.write_text(json.dumps(facts))
    again = Lineage.open(lineage.path)
    assert torch.equal(again.view(0).embeddings("query")[1], expected)


def test_a_later_format_is_refused(lineage: Lineage) -> None:
    path = lineage.path / "lineage.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(FormatError, match="format_version 99"):
        Lineage.open(lineage.path)


def test_a_version_in_another_ones_place_is_refused(lineage: Lineage) -> None:
    versions = lineage.path / "versions"
    shutil.rmtree(versions / "1")
    shutil.copytree(versions / "2", versions / "1")
    with pytest.raises(IntegrityError, match="another version"):
        Lineage.open(lineage.path)
