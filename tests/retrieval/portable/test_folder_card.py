"""The README.md of an exported folder: what it is, and only what the record has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.folder_card import folder_card
from evergram.retrieval.portable.formats import export_transform
from evergram.retrieval.pretrained.model_card import CardPlace

WAY = AffineMap(
    *("as_v0", "Reads vectors of version 2."),
    np.eye(3, 4, dtype=np.float32),
    np.zeros(3, dtype=np.float32),
)


def card(metrics: dict[str, Any], license: str | None = None) -> str:
    return folder_card(WAY, 0, metrics, CardPlace("texts-as-v0", license))


def test_the_record_of_that_version_is_shown_and_no_other_number() -> None:
    held_out = {
        "transformed": {"cosine": 0.98765, "overlap@10": 0.75, "relative_error": None},
        "as_is": {"cosine": 0.1},
    }
    certificate = {"0": {"relative": 0.12345}, "1": {"relative": 0.6}}
    text = card({"alignment": {"certificate": certificate, "held_out": held_out}})
    assert "| relative error as version 0, by the certificate | 0.1235 |" in text
    assert "| cosine, held-out objects, as the version before | 0.9877 |" in text
    assert "| overlap@10, held-out objects, as the version before | 0.75 |" in text
    for absent in ("0.6 ", "| 0.1 |", "None", "relative error, held-out", "own"):
        assert absent not in text
    assert "no measurement" not in text
    assert "The record has no measurement of it." in card({"metrics": {"model": {}}})
    assert 'SentenceTransformer("texts-as-v0")' in text
    assert "# [1, 3]" in text


def test_the_hub_reads_the_front_matter(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    (tmp_path / "README.md").write_text(card({}, "cc-by-4.0"))
    data = hub.ModelCard.load(tmp_path / "README.md").data
    assert (data.license, data.library_name) == ("cc-by-4.0", "sentence-transformers")
    assert "license" not in card({})


def test_a_licence_belongs_to_a_folder(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stands in the model card of sentence-transformers"):
        export_transform(lineage, tmp_path / "way.sql", "duckdb", license="mit")
    with pytest.raises(DataError, match="cannot stand in a model card"):
        export_transform(lineage, tmp_path / "way", "sentence-transformers", license="MIT License")
    assert list(tmp_path.glob("way*")) == []
