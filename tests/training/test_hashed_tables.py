"""A model with hashed rows is one with a row for each id, but for collisions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import prepare
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trainer
from evergram.training.memory import needed_bytes
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
KINDS = ["model.kind=factorization", "model.kind=two_tower model.hidden=[6]"]


def trainer(recipe: Recipe, corpus: Corpus) -> Trainer:
    return Trainer(*prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU))


def tables(encoder: Encoder) -> dict[str, torch.Tensor]:
    """The id table of each side."""
    parameters = dict(encoder.named_parameters())
    is_tower = encoder.kind == "two_tower"
    return {
        s: parameters[f"tables.{s}/id.weight" if is_tower else f"{s}.weight"].data for s in SIDES
    }


@pytest.mark.parametrize("kind", KINDS)
def test_without_collisions_it_is_the_model_with_a_row_for_each_id(
    small: Recipe, kind: str
) -> None:
    """The same steps from the same start, up to the order of the rows."""
    recipe = Recipe.of(small.model_dump(), kind.split())
    hashed = Recipe.of(small.model_dump(), [*kind.split(), "model.hash_rows=2000000"])
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    plain, other = trainer(recipe, corpus), trainer(hashed, corpus)
    with torch.no_grad():
        for name, value in other.encoder.named_parameters():
            if "hidden" in name:
                value.copy_(dict(plain.encoder.named_parameters())[name])
        for side in SIDES:
            rows = other.step.scene.inputs[side].table_rows
            assert len(set(rows.tolist())) == len(rows)
            tables(other.encoder)[side][rows] = tables(plain.encoder)[side]
    for run in (plain, other):
        run.fit(epochs=2)
    one, two = (run.encoder.embed_all(run.step.scene) for run in (plain, other))
    for side in SIDES:
        # Rows that a batch holds twice are summed in another order.
        torch.testing.assert_close(one[side], two[side], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_published_read_back_and_upgraded(small: Recipe, tmp_path: Path, kind: str) -> None:
    overrides = [*kind.split(), "model.dim=8", "model.hash_rows=150", "model.hash_seed=4"]
    recipe = Recipe.of(small.model_dump(), [*overrides, "upgrade.start=previous"])
    lineage = Lineage.create(tmp_path / "line", "line")
    artefact = train(recipe, device="cpu")
    assert artefact.encoder is not None
    assert artefact.encoder.options["hash_rows"] == 150
    sizes = {name: len(table) for name, table in artefact.encoder.state.items()}
    names = [n for n in sizes if n in ("query.weight", "candidate.weight") or "/id.weight" in n]
    assert [sizes[name] for name in names] == [150, 150]
    warnings = artefact.metrics["training"]["warnings"]
    assert sum("share one of 150 rows" in sentence for sentence in warnings) == 2
    publish(lineage, artefact)
    encoder = load_encoder(lineage, 0)
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    vectors = encoder.embed_all(corpus)
    ids, published = artefact.block("query")
    assert torch.equal(vectors["query"], published)
    # Through Python, the published encoder gives the published vectors, and refuses unseen ids.
    pretrained = lineage.encoder(0)
    if "factorization" in kind:
        encoded = pretrained.encode(ids, "query", convert_to_numpy=False)
        torch.testing.assert_close(encoded, published)
    with pytest.raises(DataError, match="no vector for 1 of 1 objects"):
        pretrained.encode([10**9], "query")
    assert upgrade(recipe, lineage).encoder is not None
    other = Recipe.of(recipe.model_dump(), ["model.hash_seed=5"])
    with pytest.raises(ShapeError, match=r"seed=5\) here and by .*seed=4\) in the encoder"):
        upgrade(other, lineage)
    plain = Recipe.of(small.model_dump(), [*kind.split(), "model.dim=8", "upgrade.start=previous"])
    with pytest.raises(ShapeError, match=r"by no hash here and by HashedRows\(count=150"):
        upgrade(plain, lineage)


@pytest.mark.parametrize("kind", KINDS[:1])
def test_an_unseen_id_has_a_row_and_is_not_known(small: Recipe, kind: str) -> None:
    recipe = Recipe.of(small.model_dump(), [*kind.split(), "model.hash_rows=50"])
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    encoder = trainer(recipe, corpus).encoder
    first = corpus.queries.vocabulary.keys[0].as_py()
    pairs = {"query": [first, 10**9], "candidate": [10**9, 10**9]}
    scene = encoder.read(Corpus.of(pa.table(pairs)))
    assert encoder.known("query", scene).tolist() == [True, False]
    vectors = encoder.embed_all(scene)["query"]
    table = tables(encoder)["query"]
    for row, one in zip(scene.inputs["query"].table_rows, (first, 10**9), strict=True):
        assert encoder.schema.hashed_rows("query", pa.array([one])) == row
    assert vectors.shape == (2, 8)
    if "factorization" in kind:
        assert torch.equal(vectors, table[scene.inputs["query"].table_rows])


def test_fewer_rows_need_less_memory(small: Recipe) -> None:
    corpus = split_for(small, load_corpus(small), 0).training
    entities = len(corpus.queries) + len(corpus.candidates)
    needed = [
        needed_bytes(Recipe.of(small.model_dump(), overrides).model, corpus, 0)
        for overrides in ([], ["model.hash_rows=10"])
    ]
    assert needed[0] - needed[1] == 4 * 8 * (entities - 2 * 10)
