"""The Python of docs/data.md runs, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import evergram

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "data.md", "exec"), space)
    assert f"prints `{capsys.readouterr().out.strip()}`" in PAGE
    assert isinstance(space["recipe"], evergram.Recipe)
    assert list(space["corpus"].candidates.features) == ["genres"]


def test_a_corpus_from_memory_trains() -> None:
    planted = evergram.load_corpus(
        evergram.Recipe.of(
            {"data": {"kind": "synthetic", "queries": 60, "candidates": 30, "interactions": 900}}
        )
    )
    rows = zip(planted.column("query").tolist(), planted.column("candidate").tolist(), strict=True)
    corpus = evergram.Corpus.of([(f"u{q}", c) for q, c in rows])
    recipe = evergram.Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "split": {"kind": "random", "share": 0.2},
            "model": {"dim": 4},
            "training": {"epochs": 1, "batch_size": 128},
        }
    )
    artefact = evergram.train(recipe, corpus)
    assert artefact.metrics["data"]["test_pairs"] > 0
