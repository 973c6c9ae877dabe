"""Encoders by kind: new ones, and published ones from their parts."""

from __future__ import annotations

import pytest
import torch
from tests.support.encoder_corpora import default_encoder, tagged_corpus

from evergram.encoders.encoder import Encoder
from evergram.encoders.factorization import Factorization
from evergram.encoders.factory import build_encoder, restore_encoder
from evergram.encoders.features import Schema
from evergram.encoders.kinds import ENCODERS, FactorizationSettings
from evergram.encoders.two_tower import TwoTower
from evergram.errors import IntegrityError, LineageError, RecipeError


def test_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(RecipeError, match=r"'tower' is none of factorization, two_tower"):
        build_encoder("tower", {}, Schema({}, {}), torch.Generator())
    with pytest.raises(LineageError, match=r"encoder of version 3 is of kind 'tower', and there"):
        restore_encoder("tower", {}, {}, {}, {}, "version 3")


def test_an_encoder_is_restored_from_its_parts() -> None:
    data = tagged_corpus()
    encoder = default_encoder(TwoTower, data)
    schema = encoder.schema
    parts = schema.inputs, encoder.state_dict(), schema.vocabularies, "version 3"
    restored = restore_encoder("two_tower", {"dim": 4}, *parts)
    assert not restored.training
    for side, vectors in encoder.embed_all(data).items():
        assert torch.equal(restored.embed_all(data)[side], vectors)
    with pytest.raises(IntegrityError, match="encoder of version 3 does not fit its manifest"):
        restore_encoder("two_tower", {"dim": 5}, *parts)


def test_a_class_that_took_its_parents_kind_along_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version with it would be read again by its parent."""

    class Mine(Factorization):
        pass

    class MineSettings(FactorizationSettings):
        kind = "mine"

        @classmethod
        def encoder_class(cls) -> type[Encoder]:
            return Mine

    monkeypatch.setitem(ENCODERS, "mine", MineSettings)
    with pytest.raises(RecipeError, match=r"Mine\.kind is 'factorization', .* as 'mine'"):
        build_encoder("mine", {"dim": 2}, Schema({}, {}), torch.Generator())
