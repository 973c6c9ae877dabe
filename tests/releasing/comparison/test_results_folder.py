"""A folder of results belongs to one recipe and one corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.releasing.comparison.results_folder import claim_folder

CORPUS = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))
RECIPE: dict[str, Any] = {
    "seed": 0,
    "training": {"epochs": 4, "metric": "recall@20"},
    "compare": {
        "epochs": 9,
        "methods": ["non-bc"],
        "seeds": 1,
        "lambdas": [],
        "lambda_methods": [],
    },
}


def test_more_methods_and_seeds_belong_to_the_same_results(tmp_path: Path) -> None:
    claim_folder(tmp_path / "out", RECIPE, CORPUS, fresh=False)
    more = {**RECIPE["compare"], "methods": ["bc-aligner"], "seeds": 5, "lambdas": [1.0]}
    before = (tmp_path / "out" / "recipe.json").read_bytes()
    claim_folder(tmp_path / "out", {**RECIPE, "compare": more}, CORPUS, fresh=False)
    assert (tmp_path / "out" / "recipe.json").read_bytes() == before
    assert json.loads(before)["training.metric"] == "recall@20"


def test_another_recipe_or_corpus_is_refused_by_name_and_fresh_removes_its_runs(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    claim_folder(out, RECIPE, CORPUS, fresh=False)
    (out / "seed-0" / "m0").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    other = {**RECIPE, "training": {"epochs": 5, "metric": "recall@20"}}
    with pytest.raises(RecipeError, match=r"another recipe \(training\.epochs changed\)"):
        claim_folder(out, other, CORPUS, fresh=False)
    turned = Corpus.from_tables(pa.table({"query": ["b", "a"], "candidate": ["y", "x"]}))
    with pytest.raises(RecipeError, match=r"another recipe \(corpus changed\)"):
        claim_folder(out, RECIPE, turned.restrict(turned.column("query")[:1]), fresh=False)
    assert (out / "seed-0").is_dir()
    claim_folder(out, other, CORPUS, fresh=True)
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "recipe.json"]


def test_a_file_or_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="is a file; a comparison is written into a folder"):
        claim_folder(tmp_path / "file", RECIPE, CORPUS, fresh=False)
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(RecipeError, match=r"recipe\.json cannot be read .*; choose another folder"):
        claim_folder(tmp_path, RECIPE, CORPUS, fresh=False)
