"""The encoder that is published: all rows from files, or shapes without numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.shared_training import shared_corpus
from torch import Tensor

from evergram.encoders.factorization import Factorization
from evergram.encoders.features import Schema
from evergram.errors import TrainingError
from evergram.training.sharding.gathered_factorization import (
    GatheredFactorization,
    mapped_rows,
)

CORPUS = shared_corpus()
SCHEMA = Schema.of(CORPUS, features=False)


def pieces(rows: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(rows, 4))


def test_rows_are_mapped_from_a_file_without_a_name(tmp_path: Path) -> None:
    rows = torch.randn(10, 3)
    mapped = mapped_rows(pieces(rows), (10, 3), tmp_path / "new")
    assert mapped.equal(rows)
    assert mapped.untyped_storage().filename is not None
    assert not list((tmp_path / "new").iterdir())


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"\[10, 3\] numbers, 120 bytes, .*No space left"):
        mapped_rows(pieces(torch.randn(10, 3)), (10, 3), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("normalize", [False, True])
def test_its_embeddings_are_those_of_a_factorization(tmp_path: Path, normalize: bool) -> None:
    whole = Factorization(SCHEMA, 4, generator=torch.Generator().manual_seed(2))
    whole.normalize = normalize
    gathered = GatheredFactorization(SCHEMA, 4, normalize=normalize)
    gathered.folder = tmp_path
    gathered.set_rows("query", whole.query.weight.detach())
    gathered.set_rows("candidate", whole.candidate.weight.detach())
    for side, vectors in gathered.eval().embed_all(CORPUS).items():
        assert vectors.equal(whole.eval().embed_all(CORPUS)[side])
    state = gathered.state_dict()
    assert all(value.equal(state[name]) for name, value in whole.state_dict().items())


def test_in_other_processes_it_has_shapes_alone() -> None:
    vectors = GatheredFactorization(SCHEMA, 4).embed_all(CORPUS)
    assert {side: v.shape for side, v in vectors.items()} == {
        "query": (len(CORPUS.queries), 4),
        "candidate": (len(CORPUS.candidates), 4),
    }
    assert all(v.is_meta for v in vectors.values())
