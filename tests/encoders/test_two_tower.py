"""A tower starts as a factorization; features and hidden layers are learned on top."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.encoder_corpora import stranger, tagged_corpus

from evergram.data.corpus import Corpus
from evergram.encoders.features import Schema
from evergram.encoders.two_tower import TwoTower


def tower(data: Corpus, seed: int = 0, **options: Any) -> TwoTower:
    draw = torch.Generator().manual_seed(seed)
    return TwoTower(Schema.of(data, features=True), 4, generator=draw, **options)


def unlike_its_start(encoder: TwoTower) -> TwoTower:
    """The same with no parameter at zero, as after training."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=draw)
    return encoder


def test_a_tower_starts_as_a_factorization() -> None:
    data = tagged_corpus()
    encoder = tower(data, hidden=[6, 5])
    for side, entities in (("query", data.queries), ("candidate", data.candidates)):
        table = encoder.get_parameter(f"tables.{side}/id.weight")
        assert torch.equal(encoder.encode(side, entities), table)
        assert table.std() > 0.05


@pytest.mark.parametrize("width", [2, 7])
def test_a_tower_of_another_width_starts_as_one_of_the_smaller(width: int) -> None:
    data = tagged_corpus()
    encoder = tower(data, input_dim=width)
    query, candidate, projection, other = (
        encoder.get_parameter(f"{name}.weight")
        for name in ("tables.query/id", "tables.candidate/id", "skip.query", "skip.candidate")
    )
    assert torch.equal(projection, other)
    torch.testing.assert_close(encoder.encode("query", data.queries), query @ projection.T)
    small = projection.T @ projection if width < 4 else projection @ projection.T
    torch.testing.assert_close(small, torch.eye(min(width, 4)))
    if width < 4:
        scores = (
            encoder.encode("query", data.queries) @ encoder.encode("candidate", data.candidates).T
        )
        torch.testing.assert_close(scores, query @ candidate.T)


@pytest.mark.parametrize("concatenate", [False, True])
def test_without_the_residual_it_is_the_layers_alone(concatenate: bool) -> None:
    """[G2] §4.1: input embeddings, added up or one after the other, through layers with ReLU."""
    data = tagged_corpus()
    encoder = tower(data, residual=False, concatenate=concatenate, input_dim=3, hidden=[6, 5])
    assert all(float(p.detach().std()) > 0.02 for p in encoder.tables.parameters())
    ids = encoder.get_parameter("tables.candidate/id.weight")
    inputs = encoder.schema.inputs["candidate"]
    entities = encoder.read(data).inputs["candidate"]
    rows = []
    for row in range(len(data.candidates)):
        parts = []
        for name, vocabulary in inputs.items():
            if name == "id":
                parts.append(ids[row])
                continue
            table = encoder.get_parameter(f"tables.{vocabulary.replace('.', '/')}.weight")
            indices, offsets = entities.bags[name]
            bag = table[indices[offsets[row] : offsets[row + 1]]]
            parts.append(bag.mean(0) if len(bag) else torch.zeros(3))
        x = torch.cat(parts) if concatenate else torch.stack(parts).sum(0)
        for weight, bias in ((0, 0), (2, 2), (4, 4)):
            layers = f"hidden.candidate.{weight}"
            x = encoder.get_parameter(f"{layers}.weight") @ x
            x = x + encoder.get_parameter(f"hidden.candidate.{bias}.bias")
            x = x if weight == 4 else x.relu()
        rows.append(x)
    torch.testing.assert_close(encoder.encode("candidate", data.candidates), torch.stack(rows))


def test_two_steps_move_every_parameter_of_a_tower() -> None:
    """The first step has the last layer at zero, so what is below it moves from the second on."""
    data = tagged_corpus()
    encoder = tower(data, hidden=[16, 16])
    start = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.zeros(())
        for side, entities in (("query", data.queries), ("candidate", data.candidates)):
            embeddings = encoder.embed(side, encoder.schema.read(side, entities))
            loss = loss + (embeddings - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, parameter in encoder.named_parameters():
        assert not torch.equal(parameter, start[name]), name


def test_features_alone_place_an_unknown_id() -> None:
    encoder = unlike_its_start(tower(tagged_corpus()))

    def place(tags: list[str]) -> torch.Tensor:
        return encoder.encode("candidate", stranger(tags).candidates)

    scene = encoder.read(stranger(["b", "unheard of"]))
    inputs = scene.inputs["candidate"]
    assert encoder.known("candidate", scene).tolist() == [True]
    assert inputs.bags["tags"][1].tolist() == [0, 1]
    torch.testing.assert_close(place(["b", "unheard of"]), place(["b"]))
    assert not torch.allclose(place(["a"]), place(["b"]))
    # Where x's own entity would be if its id's row were zero.
    with torch.no_grad():
        encoder.get_parameter("tables.candidate/id.weight").zero_()
    torch.testing.assert_close(
        place(["a", "b"])[0], encoder.encode("candidate", tagged_corpus().candidates)[0]
    )
