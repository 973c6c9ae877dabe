"""Stored embeddings are measured as asked: all queries, a sample of them, by an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.tiny_training import tiny_lineage


@pytest.fixture
def lineage(tmp_path: Path) -> str:
    tiny_lineage(tmp_path / "l")
    return str(tmp_path / "l")


def test_a_sample_is_shown_with_its_errors_and_is_the_same_again(
    lineage: str, evergram: Command
) -> None:
    whole = evergram("evaluate", lineage, "--json").json
    assert "sampled" not in whole
    assert "±" not in evergram("evaluate", lineage).out
    part = evergram("evaluate", lineage, "--queries", "4", "--json").json
    assert part["sampled"]["queries"] == 4 < part["sampled"]["of"]
    assert set(part["metrics"]) == {"model", "popularity"} == set(part["sampled"]["errors"])
    assert evergram("evaluate", lineage, "--queries", "4", "--json").json == part
    shown = evergram("evaluate", lineage, "--queries", "4").out
    assert "±" in shown
    assert "Measured on 4 of" in shown
    assert evergram("evaluate", lineage, "--queries", "900", "--json").json == whole
    assert "--queries" in evergram("evaluate", lineage, "--queries", "1").err


def test_an_index_is_shown_with_its_recall(lineage: str, evergram: Command) -> None:
    pytest.importorskip("faiss")
    whole = evergram("evaluate", lineage, "--json").json
    by_index = evergram("evaluate", lineage, "--index", "hnsw", "--json").json
    assert by_index["index"]["kind"] == "hnsw"
    assert by_index["index"]["recall"] >= 0.95
    assert by_index["metrics"]["popularity"] == pytest.approx(whole["metrics"]["popularity"])
    found, exact = (r["metrics"]["model"]["recall@20"] for r in (by_index, whole))
    assert found == pytest.approx(exact, abs=0.1)
    assert "best candidates (measured on" in evergram("evaluate", lineage, "--index", "ivf").out
