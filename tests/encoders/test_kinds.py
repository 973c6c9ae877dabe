"""Settings of encoders: options for a version, and the size of what they make."""

from __future__ import annotations

import pytest
import torch
from tests.support.encoder_corpora import tagged_corpus

from evergram.encoders.factory import build_encoder
from evergram.encoders.features import Schema
from evergram.encoders.kinds import (
    ENCODERS,
    EncoderSettings,
    GraphSageSettings,
    LightGCNSettings,
    TwoTowerSettings,
    at_version,
)


def test_the_last_entry_of_a_list_serves_all_later_versions() -> None:
    assert [at_version([2, 3], version) for version in range(4)] == [2, 3, 3, 3]
    assert LightGCNSettings(layers=[1, 4]).options(7) == {"layers": 4}
    assert GraphSageSettings(layers=[2, 3], input_dim=8).options(0) == {
        "layers": 2,
        "width": 8,
        "ids": False,
        "shared_scale": None,
        "repeats": False,
    }


@pytest.mark.parametrize(
    "settings",
    [
        ENCODERS["factorization"](),
        TwoTowerSettings(hidden=[]),
        TwoTowerSettings(hidden=[16, 5], input_dim=7),
        GraphSageSettings(layers=[1]),
        GraphSageSettings(layers=[3], input_dim=7),
        LightGCNSettings(),
    ],
    ids=repr,
)
def test_the_numbers_of_layers_are_a_bound_close_to_their_parameters(
    settings: EncoderSettings,
) -> None:
    schema = Schema.of(tagged_corpus(), features=settings.reads_features)
    options = {"dim": 6, **settings.options(0)}
    encoder = build_encoder(settings.kind, options, schema, torch.Generator())
    layers = [p for n, p in encoder.named_parameters() if "tables" not in n and p.ndim == 2]
    if settings.kind == "factorization":
        layers = []
    numbers = sum(parameter.numel() for parameter in layers)
    # Biases, norms and the projection of x are beside.
    assert settings.layer_numbers(6, 0) <= numbers <= settings.layer_numbers(6, 0) + 2 * 6 * 7
