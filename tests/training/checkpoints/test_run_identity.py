"""A run is known by its recipe, version, data, modules and torch; another one is named in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch import nn

from evergram.data.corpus import Corpus
from evergram.training.build import Companions
from evergram.training.checkpoints.run_identity import (
    RunIdentity,
    corpus_digest,
    files_digest,
    modules_digest,
)
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

PAIRS = {"query": ["a", "b", "b"], "candidate": ["x", "y", "x"], "value": [1.0, 2.0, 3.0]}
FEATURES = {"id": ["a", "b"], "city": ["u", "v"]}


def corpus(
    pairs: dict[str, list[object]] | None = None, **features: list[str] | list[int]
) -> Corpus:
    table = pa.table({**PAIRS, **(pairs or {})})
    return Corpus.from_tables(table, pa.table({**FEATURES, **features}))


def test_every_column_id_and_feature_of_a_corpus_counts() -> None:
    digests = [
        corpus_digest(corpus()),
        corpus_digest(corpus({"candidate": ["x", "y", "y"]})),
        corpus_digest(corpus({"query": ["a", "c", "c"]})),
        corpus_digest(corpus({"value": [1.0, 2.0, 4.0]})),
        corpus_digest(corpus({"weight": [1.0, 2.0, 4.0]})),
        corpus_digest(corpus(city=["u", "w"])),
        corpus_digest(corpus(city=["u", "u"])),
        corpus_digest(corpus({"query": [1, 2, 2]}, id=[1, 2])),
    ]
    assert len(set(digests)) == len(digests)
    assert corpus_digest(corpus()) == digests[0]


def test_a_digest_does_not_change_with_the_release() -> None:
    """Changed digests would restart half-done trainings: this one was recorded."""
    table = pa.table({"query": [3, 4], "candidate": [5, 5]})
    assert corpus_digest(Corpus.from_tables(table)) == (
        "cfbcbd69b88e0a1baa631551bf7974ee7b3d098f879c31f51a38bc0535d5b8c4"
    )


class Moved(nn.Module):
    """A parameter, which is trained, and a buffer, which is the past."""

    def __init__(self, parameter: float, buffer: float) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.tensor(parameter))
        self.register_buffer("past", torch.tensor(buffer), persistent=False)


def test_modules_count_and_of_a_joint_one_the_buffers() -> None:
    def digest(**companions: object) -> str:
        return modules_digest(Companions(**companions))  # type: ignore[arg-type]

    digests = [
        digest(),
        digest(joint=Moved(1.0, 2.0)),
        digest(joint=Moved(1.0, 3.0)),
        digest(start=Moved(1.0, 2.0)),
        digest(own=Moved(1.0, 2.0)),
        digest(past={"query": torch.ones(2)}),
        digest(past={"query": torch.zeros(2)}),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(joint=Moved(5.0, 2.0)) == digests[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"torch": "1.0"}, f"another torch (1.0, here {torch.__version__})"),
        ({"version": "3"}, "another version (3, here 0)"),
        ({"corpus": "x"}, "another corpus"),
        ({"selection": "x"}, "other pairs that select an epoch"),
        ({"modules": "x"}, "other modules, or another version before it"),
        ({"purpose": "refit"}, "another number of steps"),
        ({"files": "x"}, "other contents of the files that [prior] or a measure of [task] names"),
        ({"recipe": "no JSON"}, "another recipe"),
        ({}, ""),
    ],
)
def test_a_difference_is_named(small: Recipe, change: dict[str, str], words: str) -> None:
    split = split_for(small, load_corpus(small), 0)
    identity = RunIdentity.of(small.model_dump_json(), 0, split, Companions())
    other = replace(identity, **change)
    assert identity.difference(other.as_json()) == words


def test_changed_keys_of_a_recipe_are_named(small: Recipe) -> None:
    def identity(*overrides: str) -> RunIdentity:
        recipe = Recipe.of(small.model_dump(), list(overrides))
        return RunIdentity(recipe.model_dump_json(), "0", "")

    one, other = identity(), identity("task.penalty=6.0", "training.epochs=9")
    words = "another recipe (task.penalty, training.epochs changed)"
    assert one.difference(other.as_json()) == words
    many = identity(
        *(f"training.{k}=9" for k in ("epochs", "table_rate", "patience")),
        "seed=4",
        "model.dim=4",
        "task.l2=3",
        "name=other",
    )
    assert one.difference(many.as_json()).endswith(", … changed)")
    assert one.difference({}) == "another recipe"


def test_the_contents_of_the_files_that_a_recipe_names_count(tmp_path: Path) -> None:
    query, weights = tmp_path / "query.parquet", tmp_path / "weights.csv"
    recipe = {
        "prior": {"kind": "files", "query": str(query), "candidate": str(query)},
        "task": {"query_measure": [0.5, str(weights)], "candidate_measure": 1.0},
    }
    query.write_text("one")
    digests = [files_digest(recipe)]  # a file that is not there is refused elsewhere
    weights.write_text("id,weight")
    digests.append(files_digest(recipe))
    query.write_text("two")
    digests.append(files_digest(recipe))
    assert len(set(digests)) == 3
    assert files_digest({"prior": {"kind": "zero"}, "task": {"query_measure": [1.0]}}) == ""
