"""The demo's consumer, and the demo's recipe."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from evergram.data.corpus import Corpus
from evergram.errors import DataError
from evergram.releasing.demo import demo_recipe, rated_above_median


def rated(means: list[float], ratings: int = 5) -> Corpus:
    """Candidates c0, c1, … with so many ratings of these means."""
    rows = [(f"q{j}", f"c{i}", mean) for i, mean in enumerate(means) for j in range(ratings)]
    query, candidate, value = zip(*rows, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, "value": value}))


def test_the_consumer_asks_for_candidates_above_the_median() -> None:
    ids, label = rated_above_median(rated([float(i % 25) for i in range(25)]))
    above = {name for name, is_above in zip(ids.to_pylist(), label, strict=True) if is_above}
    assert above == {f"c{i}" for i in range(13, 25)}


def test_candidates_with_few_ratings_are_left_out_and_20_are_needed() -> None:
    corpus = rated([float(i) for i in range(20)])
    assert len(rated_above_median(corpus)[0]) == 20
    with pytest.raises(DataError, match="Only 0 candidates have 6 ratings; the consumer needs 20"):
        rated_above_median(corpus, minimum=6)
    with pytest.raises(DataError, match="value"):
        rated_above_median(Corpus.from_tables(pa.table({"query": ["a"], "candidate": ["x"]})))


def test_the_recipe_is_of_planted_data_or_of_movielens(tmp_path: Path) -> None:
    planted = demo_recipe(None, ["training.epochs=2"])
    assert (planted.data.kind, planted.training.epochs) == ("synthetic", 2)
    films = demo_recipe(tmp_path, [])
    assert (films.data.kind, films.data.path) == ("movielens", str(tmp_path))
    assert len(planted.split.versions) == len(films.split.versions) == len(films.model.dim)
