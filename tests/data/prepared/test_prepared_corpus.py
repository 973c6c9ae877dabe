"""Prepared folders as they are loaded, and those that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
import torch
from tests.support.prepared import prepared, write_arrow, write_prepared
from tests.support.streamed import generated

from evergram.data.corpus import Corpus
from evergram.data.holdout import rules
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepared_corpus import load_prepared
from evergram.data.prepared.writing.prepare import prepare
from evergram.errors import DataError


@pytest.mark.parametrize("parts", [(), (0.5,), (0.1, 0.2, 0.9)])
def test_a_folder_is_the_corpus_that_was_written(parts: tuple[float, ...], tmp_path: Path) -> None:
    corpus = generated(700)
    mapped = prepared(corpus, tmp_path / "p", *parts)
    assert mapped.in_memory().interactions.equals(corpus.interactions)
    assert len(mapped.columns) == len(parts) + 1
    assert torch.equal(mapped.counts("candidate"), corpus.counts("candidate"))


def test_columns_are_mapped_and_not_copied(tmp_path: Path) -> None:
    mapped = prepared(generated(700), tmp_path / "p")
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "p" / "parts" / "00000" / "query.npy") in maps
    assert mapped.interactions["query"].type == pa.int32()


def test_sides_may_share_their_ids(tmp_path: Path) -> None:
    features = {"id": ["a", "b"], "topic": [["x"], ["x", "y"]]}
    corpus = Corpus.of(
        [("a", "b"), ("b", "c"), ("b", "a")],
        shared_ids=True,
        query_features=features,
        candidate_features=features,
    )
    mapped = prepared(corpus, tmp_path / "p")
    assert mapped.shared_ids
    assert mapped.candidates.vocabulary is mapped.queries.vocabulary
    for side in (mapped.queries, mapped.candidates):
        assert side.features["topic"].vocabulary.keys.to_pylist() == ["x", "y"]
    assert torch.equal(mapped.counts("query"), corpus.counts("query"))
    assert torch.equal(mapped.counts("candidate"), corpus.counts("candidate"))


def test_an_append_that_was_not_finished_is_not_seen(tmp_path: Path) -> None:
    corpus = generated(700)
    folder = write_prepared(corpus, tmp_path / "p")
    with ipc.open_file(folder / "query.arrow") as source:
        table = source.read_all()
    # The table has a new entity, and counts with the part that prepared.json does not name yet.
    longer = pa.concat_tables([table, table.slice(0, 1).set_column(0, "id", pa.array([10**6]))])
    counts = pa.array(longer["count"].to_numpy() + 5)
    write_arrow(
        folder / "query.arrow",
        {"id": longer["id"].combine_chunks(), "count": counts},
    )
    mapped = load_prepared(folder)
    assert mapped.queries.vocabulary.same_keys(corpus.queries.vocabulary)
    assert torch.equal(mapped.counts("query"), corpus.counts("query"))
    assert torch.equal(mapped.counts("candidate"), corpus.counts("candidate"))


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = write_prepared(generated(700), tmp_path / "p")
    whole = json.loads((folder / "prepared.json").read_text())

    def refuses(message: str) -> None:
        with pytest.raises(DataError, match=message):
            load_prepared(folder)

    whole["sides"]["query"]["entities"] += 1
    (folder / "prepared.json").write_text(json.dumps(whole))
    refuses(r"query\.arrow has 60 entities")
    whole["sides"]["query"]["entities"] -= 1
    whole["sides"]["query"]["features"] = ["age"]
    (folder / "prepared.json").write_text(json.dumps(whole))
    refuses("expects 60 and age")
    whole["sides"]["query"]["features"] = []
    whole["columns"]["weight"] = "float64"
    (folder / "prepared.json").write_text(json.dumps(whole))
    refuses(r"weight\.npy holds float32, and .* says float64")
    whole["columns"]["weight"] = "float32"
    (folder / "prepared.json").write_text(json.dumps(whole))
    np.save(folder / "parts" / "00000" / "time.npy", np.arange(3))
    refuses(r"time\.npy has the shape \(3,\)")
    (folder / "parts" / "00000" / "time.npy").unlink()
    refuses(r"time\.npy cannot be read")


@pytest.mark.parametrize("row", [-1, 60])
def test_rows_outside_of_their_side_are_refused(row: int, tmp_path: Path) -> None:
    folder = write_prepared(generated(700), tmp_path / "p")
    path = folder / "parts" / "00000" / "query.npy"
    rows = np.load(path)
    rows[333] = row
    np.save(path, rows)
    mapped = load_prepared(folder)
    with pytest.raises(DataError, match=r"'query' of prepared data names the rows .* there are 60"):
        mapped.where(rules.first(400))


@pytest.mark.parametrize("ids", [pa.array([1.5, 2.5]), pa.array(["a", None])])
def test_ids_of_another_kind_are_refused(ids: pa.Array, tmp_path: Path) -> None:
    folder = write_prepared(Corpus.of([("a", 1), ("b", 1)]), tmp_path / "p")
    write_arrow(folder / "query.arrow", {"id": ids, "count": [1, 1]})
    with pytest.raises(DataError, match="they must be int64 or string"):
        load_prepared(folder)


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["query", "candidate", "value", "weight", "time"])
@pytest.mark.parametrize("append", [False, True])
def test_a_changed_byte_is_refused_before_anything_is_written(
    name: str, append: bool, tmp_path: Path
) -> None:
    corpus, folder = generated(700), tmp_path / "p"
    prepare(corpus, folder)
    if append:
        last = {"query": [1, 2], "candidate": [1, 1], "time": [999, 999]}
        prepare(pa.table(last | {"value": [0.5, 0.5], "weight": [1, 2]}), folder, append=True)
    path = folder / "parts" / ("00001" if append else "00000") / f"{name}.npy"
    assert len(load_prepared(folder).where(rules.first(400))) == 400
    flipped(path, path.stat().st_size - 4)  # a row or a number as likely as the one that was there
    mapped = load_prepared(folder)
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{name}\.npy is not as it was .*bring the file back"):
            mapped.where(rules.first(300))
    assert len(list(mapped.cache.rglob("part.json"))) == 1
    flipped(path, path.stat().st_size - 4)
    assert len(load_prepared(folder).where(rules.first(300))) == 300


def test_a_part_that_is_written_already_is_not_tested_by_other_data(tmp_path: Path) -> None:
    """Held-out pairs are read from the columns each time, so these are verified each time."""
    folder = tmp_path / "p"
    prepare(generated(700), folder)
    rule = rules.first(400)
    assert isinstance(load_prepared(folder).where(rule), MappedCorpus)
    path = folder / "parts" / "00000" / "candidate.npy"
    content = path.read_bytes()
    path.write_bytes(content[:1000] + bytes(400) + content[1400:])
    with pytest.raises(DataError, match=r"candidate\.npy is not as it was written"):
        load_prepared(folder).where(rule)


def test_a_changed_file_of_entities_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    prepare(Corpus.of([("ann", 1), ("ben", 1)]), folder)
    path = folder / "query.arrow"
    flipped(path, path.read_bytes().index(b"annben") + 2)
    with pytest.raises(DataError, match=r"query\.arrow is not as it was .* Prepare the data again"):
        load_prepared(folder)
