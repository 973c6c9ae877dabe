"""Four files become vectors in one order, or are refused with what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.text_encoders import ADDRESSES, HERE, encoded

from evergram.errors import DataError
from evergram.releasing.migration.migration_vectors import MigrationVectors
from evergram.vector_files.base import EmbeddingFile
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors


def put(path: Path, ids: list[str], dim: int) -> EmbeddingFile:
    """Write vectors whose first coordinate says which id they are of."""
    rows = torch.ones(len(ids), dim)
    rows[:, 0] = torch.tensor([float(i[1:]) for i in ids])
    write_vectors(path, [(pa.array(ids), rows)])
    return open_embeddings(path)


Pair = tuple[EmbeddingFile, EmbeddingFile]


def files(folder: Path, new: list[str]) -> tuple[Pair, Pair]:
    texts = put(folder / "o.parquet", ["d1", "d2", "d3"], 2), put(folder / "n.npy", new, 3)
    queries = put(folder / "oq.parquet", ["q1", "q2"], 2), put(folder / "nq.npy", ["q2", "q1"], 3)
    return texts, queries


def test_rows_of_all_four_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    vectors = MigrationVectors.of(*files(tmp_path, ["d3", "d1", "d2"]))
    for ids, sides in (
        (vectors.texts, (vectors.old, vectors.new)),
        (vectors.queries, (vectors.old_queries, vectors.new_queries)),
    ):
        for side in sides:
            assert side[:, 0].tolist() == [float(i[1:]) for i in ids]
    assert sorted(vectors.texts) == ["d1", "d2", "d3"]


def test_texts_are_from_the_last_id_to_the_first_whatever_the_files(tmp_path: Path) -> None:
    """So that texts of equal score are ranked as trec_eval does."""
    for order in (["d1", "d2", "d3"], ["d3", "d1", "d2"]):
        assert MigrationVectors.of(*files(tmp_path, order)).texts == ["d3", "d2", "d1"]


def test_queries_of_another_encoder_are_refused_where_files_say_so(tmp_path: Path) -> None:
    made = {address: encoded(tmp_path, address) for address in ADDRESSES[:2]}
    other = encoded(tmp_path, f"{HERE}:shifted")
    old, new = made.values()
    assert MigrationVectors.of((old, new), (old, new)).queries
    with pytest.raises(DataError, match=r"was not encoded by the encoder of .* texts differ"):
        MigrationVectors.of((old, new), (other, new))


@pytest.mark.parametrize("side", ["old", "new"])
def test_it_is_known_whether_lengths_differ(tmp_path: Path, side: str) -> None:
    lengths = {"old": [1.0, 1.0, 1.0], "new": [2.0, 2.0, 2.0]}

    def differ() -> bool:
        files = []
        for name, values in lengths.items():
            rows = torch.diag(torch.tensor(values))
            write_vectors(tmp_path / f"{name}.npy", [(pa.array(["a", "b", "c"]), rows)])
            files.append(open_embeddings(tmp_path / f"{name}.npy"))
        pair = files[0], files[1]
        return MigrationVectors.of(pair, pair).lengths_differ

    assert not differ()  # of one length each
    lengths[side][0] *= 1.5
    assert differ()


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    texts, queries = files(tmp_path, ["d3", "d1"])
    with pytest.raises(DataError, match=r"1 ids are in .* alone and 0 in"):
        MigrationVectors.of(texts, queries)
    texts, queries = files(tmp_path, ["d3", "d1", "d2"])
    with pytest.raises(DataError, match="has 3 dims, and the texts of its model have 2"):
        MigrationVectors.of(texts, (queries[1], queries[0]))
    np.save(tmp_path / "bare.npy", np.ones((3, 3), np.float32))
    with pytest.raises(DataError, match=r"bare.npy has none; write the ids .* bare.ids.txt"):
        MigrationVectors.of((texts[0], open_embeddings(tmp_path / "bare.npy")), queries)
