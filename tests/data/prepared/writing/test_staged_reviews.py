"""Reviews that are staged and prepared are the corpus that the loader makes of them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.prepared_folders import assert_is_corpus

from evergram.data.amazon import load_amazon
from evergram.data.files import json_lines
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.prepared.writing.staged_reviews import stage_amazon
from evergram.errors import DataError

SETTINGS = PrepareSettings(kind="amazon", memory="256MiB", threads=1)


def written(folder: Path, reviews: int, *, metadata: bool) -> Path:
    """Write reviews in random order of time, and products, one of them twice."""
    folder.mkdir()
    draw = random.Random(0)
    lines = []
    for _ in range(reviews):
        names = {"reviewerID": f"U{draw.randint(0, 30)}", "asin": f"P{draw.randint(0, 20)}"}
        numbers = {"overall": draw.randint(1, 5), "unixReviewTime": draw.randint(0, 50)}
        lines.append(json.dumps({**names, **numbers, "reviewText": "Good.\n"}))
    (folder / "reviews.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    if metadata:
        products = [
            {"asin": f"P{i}", "brand": f"B{i % 3}", "category": [f"C{i % 4}", "All &amp; more"]}
            for i in [*range(25), 3]
        ]
        (folder / "meta.json").write_text("\n".join(map(json.dumps, products)))
    return folder


@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("block", [400, 1 << 20])
def test_prepared_reviews_are_the_loaded_ones(
    metadata: bool, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK", block)
    folder = written(tmp_path / "reviews", 300, metadata=metadata)
    summary = prepare(folder, tmp_path / "out", SETTINGS)
    corpus = load_amazon(folder)
    assert set(corpus.candidates.features) == ({"brand", "category"} if metadata else set())
    assert_is_corpus(tmp_path / "out", corpus)
    assert summary.rows_read == 300


def test_products_that_are_not_reviewed_are_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "reviews", 100, metadata=True)
    (tmp_path / "staged").mkdir()
    source, features = stage_amazon(folder, tmp_path / "staged", lambda _: None)
    assert features is not None
    assert set(pq.read_table(features)["id"].to_pylist()) <= {f"P{i}" for i in range(21)}
    for _ in range(2):
        assert sum(batch.num_rows for batch in source.read()) == 100


@pytest.mark.parametrize("name", ["amazon-beauty", "amazon-musical-instruments"])
def test_real_reviews_are_prepared_as_they_are_loaded(
    name: str, tmp_path: Path, real_data: Path
) -> None:
    prepare(real_data / name, tmp_path / "out", SETTINGS)
    assert_is_corpus(tmp_path / "out", load_amazon(real_data / name))


def test_damage_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "reviews", 3, metadata=False)
    path = folder / "reviews.json"
    path.write_bytes(gzip.decompress((folder / "reviews.json.gz").read_bytes()) + b"\n{}\n")
    (folder / "reviews.json.gz").unlink()
    with pytest.raises(DataError, match=r"reviews\.json row 4: reviewerID is None"):
        prepare(folder, tmp_path / "out", SETTINGS)
    with pytest.raises(DataError, match="There is no file or folder"):
        prepare(tmp_path / "nothing", tmp_path / "out", SETTINGS)
    path.write_text("")
    with pytest.raises(DataError, match="has no rows"):
        prepare(folder, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()
