"""From a trained encoder to an artefact, and from a lineage to an encoder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.encoders import lineage_with_encoder, two_tower
from tests.support.lineages import lineage_of

from evergram.data.corpus import Corpus, Side, Vocabulary
from evergram.encoders.encoder_modules import EncoderModules
from evergram.encoders.mapped_tensors import mapped_zeros
from evergram.errors import LineageError, UnknownVersionError
from evergram.training import checkpoint
from evergram.training.checkpoint import held_out, load_encoder, trained_pairs


def entities(names: list[str]) -> Side:
    return Side(Vocabulary(pa.array(names)))


def test_a_published_encoder_is_read_as_it_was(tmp_path: Path) -> None:
    lineage, encoder = lineage_with_encoder(tmp_path / "l"), two_tower()
    loaded = load_encoder(lineage, 0)
    assert not loaded.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])


def test_an_encoder_that_is_not_there_or_needs_no_module_is_refused(tmp_path: Path) -> None:
    lineage = lineage_with_encoder(tmp_path / "l")
    with pytest.raises(UnknownVersionError):
        load_encoder(lineage, 3)
    modules = EncoderModules(torch.nn.Linear(1, 4), torch.nn.Linear(1, 4), list, list)
    with pytest.raises(LineageError, match="version 0 is a built-in two_tower, so no module fits"):
        load_encoder(lineage, 0, modules)
    with pytest.raises(LineageError, match="came from a file of embeddings and has no model"):
        load_encoder(lineage_of(tmp_path / "files", 1), 0)


def test_past_canaries_stay_and_others_fill_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CANARIES", 4)
    names = [f"id{i}" for i in range(10)]
    vocabulary = Vocabulary(pa.array(names))
    first = checkpoint._canaries(vocabulary, None)
    assert len(first) == 4
    # One of them has gone since, and there is a canary of an object that this version lacks.
    kept = [names[int(row)] for row in first[1:]]
    past = pa.array(["gone", *kept]), torch.zeros(4, 2)
    grown = Vocabulary(pa.array(["new", *names]))
    rows = checkpoint._canaries(grown, past)
    assert [grown.keys[int(row)].as_py() for row in rows[:3]] == kept
    assert len(set(rows.tolist())) == 4


def test_held_out_objects_are_the_same_in_every_version() -> None:
    whole, part = [f"id{i}" for i in range(500)], [f"id{i}" for i in range(250)]
    of_whole = {n for n, held in zip(whole, held_out(entities(whole), 0.2), strict=True) if held}
    of_part = {n for n, held in zip(part, held_out(entities(part), 0.2), strict=True) if held}
    assert of_part == of_whole & set(part)
    assert 0.15 < len(of_whole) / len(whole) < 0.25


def test_trained_pairs_are_hashed_with_the_salt() -> None:
    corpus = Corpus.from_tables(pa.table({"query": ["a", "a"], "candidate": ["x", "y"]}))
    salt, pairs = trained_pairs(corpus, "films")
    assert (salt, len(pairs)) == ("films", 2)
    assert trained_pairs(corpus, "other")[1].marks.tolist() != pairs.marks.tolist()


def test_vectors_from_a_file_and_shapes_without_numbers_are_published_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BLOCK", 4)
    ids, vectors = pa.array(range(10)), torch.randn(10, 4)
    assert checkpoint._published(ids, vectors) == (ids, vectors)
    mapped = mapped_zeros((10, 4), tmp_path).copy_(vectors)
    for kept in (mapped, vectors.to("meta")):
        blocks = checkpoint._published(ids, kept)
        assert callable(blocks)
        parts = list(blocks())
        assert [len(i) for i, _ in parts] == [4, 4, 2]
        assert pa.concat_arrays([i for i, _ in parts]).equals(ids)
        assert kept.is_meta or torch.cat([v for _, v in parts]).equal(vectors)
