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
from evergram.errors import LineageError, UnknownVersionError
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
