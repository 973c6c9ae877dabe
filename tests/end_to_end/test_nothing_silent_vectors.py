"""Vectors, ids and tests of few queries: what would otherwise pass in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.command import Command

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage

ROWS, DIM = 300, 8


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def vectors(seed: int, mean: float = 0.0) -> Any:
    return np.random.default_rng(seed).normal(mean, size=(ROWS, DIM)).astype(np.float32)


def write(name: str, values: Any, ids: pa.Array | None = None) -> None:
    ids = pa.array(range(100, 100 + ROWS)) if ids is None else ids
    columns = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), DIM)
    pq.write_table(pa.table({"id": ids, "vector": columns}), name)


def turned(values: Any) -> Any:
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(DIM, DIM)))[0]
    return (values @ rotation).astype(np.float32)


def test_5_a_limit_does_not_take_the_place_of_being_better_than_chance(evergram: Command) -> None:
    """With a large mean, noise has a small error."""
    write("old.parquet", vectors(0, mean=30))
    write("noise.parquet", vectors(1, mean=30))
    align = ("vectors", "align", "old.parquet", "noise.parquet", "--lineage", "l", "--max-error")
    refused = evergram(*align, 0.5)
    assert refused.code == 2
    assert "says next to nothing" in refused.err
    assert not Path("l/lineage.json").exists()
    # Whoever lifts all limits is warned, and so is everybody who reads the version.
    published = evergram(*align, "inf")
    assert published.code == 0
    assert "No better than chance" in published.out
    assert "no better than chance" in published.err
    warnings = evergram("lineage", "list", "l", "--json").json["versions"][1]["warnings"]
    assert any("no better than chance" in sentence for sentence in warnings)


def test_4_a_test_of_few_queries_says_so_wherever_the_version_is(evergram: Command) -> None:
    draw = np.random.default_rng(0)
    pairs = np.unique(np.c_[draw.integers(0, 80, 1500), draw.integers(0, 60, 1500)], axis=0)
    table = pa.table({"query": pairs[:, 0], "candidate": pairs[:, 1]})
    pq.write_table(table, "all.parquet")
    # All but one of the test pairs are in the training file, too.
    test = pa.concat_tables([table.slice(0, 200), pa.table({"query": [3], "candidate": [999]})])
    pq.write_table(test, "test.parquet")
    Path("r.toml").write_text(
        "[data]\nkind = 'table'\npath = 'all.parquet'\ntest = 'test.parquet'\n"
        "[split]\nkind = 'given'\n[model]\ndim = 4\n[training]\nepochs = 2\n"
    )
    trained = evergram("train", "r.toml", "--lineage", "l", "--json")
    assert trained.code == 0
    assert trained.json["data"]["test_pairs"] == 1
    assert trained.json["data"]["in_training"] == 200
    sentence = "tested on 1 queries only (of the held-out pairs, 200 are in the training data too)"
    assert sentence in trained.err
    assert sentence in evergram("lineage", "list", "l", "--json").json["versions"][0]["warnings"][0]


def test_also_an_ids_file_of_integers_is_of_integers(evergram: Command) -> None:
    """Beside a version whose ids are integers: stores and consumers ask by them."""
    old = vectors(0)
    write("old.parquet", old)
    np.save("new.npy", turned(old))
    Path("ids.txt").write_text("".join(f"{100 + i}\n" for i in range(ROWS)))
    assert evergram("vectors", "import", "old.parquet", "--lineage", "l").code == 0
    assert evergram("store", "fill", "l", "--store", "object=s").code == 0
    aligned = ("vectors", "align", 0, "new.npy", "--new-ids", "ids.txt", "--lineage", "l")
    assert evergram(*aligned).code == 0
    assert Lineage.open("l").embeddings("object")[0].type == pa.int64()
    assert evergram("store", "fill", "l", "--store", "object=s").code == 0


def test_also_a_version_keeps_the_type_of_ids(evergram: Command) -> None:
    """Text that is integers becomes integers again; text that is not is refused."""
    old = vectors(0)
    write("old.parquet", old)
    texts = [str(i) for i in range(100, 100 + ROWS)]
    write("same.parquet", turned(old), pa.array(texts))
    write("other.parquet", turned(old), pa.array(["00017", *texts[1:]]))
    assert evergram("vectors", "import", "old.parquet", "--lineage", "l").code == 0
    refused = evergram("vectors", "align", 0, "other.parquet", "--lineage", "l")
    assert refused.code == 2
    assert "'00017'" in refused.err
    assert "are integers" in refused.err
    assert len(Lineage.open("l").versions) == 1
    assert evergram("vectors", "align", 0, "same.parquet", "--lineage", "l").code == 0
    assert Lineage.open("l").embeddings("object")[0].type == pa.int64()


def test_also_ids_that_have_become_text_are_refused_before_training(evergram: Command) -> None:
    draw = np.random.default_rng(0)
    rows = "".join(f"{q},{c}\n" for q, c in zip(*draw.integers(0, 90, (2, 1500)), strict=True))
    Path("a.csv").write_text("query,candidate\n" + rows)
    Path("b.csv").write_text("query,candidate\n" + rows + "00017,5\n")
    Path("r.toml").write_text(
        "[data]\nkind = 'table'\npath = 'a.csv'\n[model]\ndim = 4\n[training]\nepochs = 2\n"
    )
    assert evergram("train", "r.toml", "--lineage", "l").code == 0
    refused = evergram("upgrade", "r.toml", "--lineage", "l", "--set", "data.path=b.csv")
    assert refused.code == 2
    assert "'00017'" in refused.err
    assert "epoch" not in refused.err


def test_also_a_file_without_ids_is_not_said_to_have_them(evergram: Command) -> None:
    old = vectors(0)
    write("old.parquet", old)
    write("new.parquet", turned(old))
    assert evergram("vectors", "align", "old.parquet", "new.parquet", "--lineage", "l").code == 0
    np.save("bare.npy", turned(old))
    done = evergram(
        "vectors", "transform", "bare.npy", "--lineage", "l", "--as", 0, "--out", "out.npy"
    )
    assert done.code == 0
    assert "without ids" in done.out
    assert not Path("out.ids.txt").exists()


def test_also_small_mistakes_are_named(evergram: Command) -> None:
    old = vectors(0)
    write("old.parquet", old)
    write("new.parquet", turned(old))
    align = ("vectors", "align", "old.parquet", "new.parquet", "--lineage", "l")
    high = evergram(*align, "--transform", "low_rank", "--rank", 9)
    assert (high.code, "has 8 at most" in high.err) == (2, True)
    none = evergram(*align, "--held-out", 0)
    assert (none.code, "--held-out" in none.err) == (2, True)
    assert evergram(*align).code == 0
    view = Lineage.open("l").view(0)
    with pytest.raises(DataError, match="not finite"):
        view.transform(np.full((1, DIM), np.nan, np.float32))
    # A file beside an .npy that was left over is named.
    assert evergram("vectors", "export", "l", "kept.npy", "--side", "object").code == 0
    np.save("kept.npy", turned(old))
    known = evergram("vectors", "align", 1, "kept.npy", "--lineage", "l")
    assert (known.code, "kept.npy.json" in known.err) == (2, True)


def test_also_a_file_of_few_rows_says_how_many_are_left(evergram: Command) -> None:
    Path("two.csv").write_text("query,candidate\n1,2\n3,4\n")
    Path("r.toml").write_text("[data]\nkind = 'table'\npath = 'two.csv'\n")
    refused = evergram("train", "r.toml", "--lineage", "l")
    assert refused.code == 2
    assert "of 2 interactions" in refused.err


def test_also_a_score_past_float32_is_no_warning_of_numpy(evergram: Command) -> None:
    old = torch.from_numpy(vectors(0))
    write("old.parquet", old.numpy())
    assert evergram("vectors", "import", "old.parquet", "--lineage", "l").code == 0
    assert evergram("store", "fill", "l", "--store", "object=s").code == 0
    from evergram.retrieval.reader import Reader

    reader = Reader.open("l", {"object": "s"})
    # Warnings are errors in this suite.
    (hits,) = reader.search(np.full((1, DIM), 1e30, np.float32), 3, metric="l2")
    assert not np.isfinite(hits.scores).any()
