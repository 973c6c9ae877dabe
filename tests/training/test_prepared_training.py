"""Training on prepared data: the same as in memory where the order is the same, and resumable."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow.csv import write_csv
from pyarrow.parquet import write_table as write_parquet
from tests.support.fits import assert_same, untimed
from tests.support.prepared import generated, write_prepared
from tests.support.several_processes import ended, start

from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.sampling import ExampleSampler
from evergram.errors import DataError, RecipeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import build_sampler
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings


def recipe_of(folder: Path, *overrides: str) -> Recipe:
    return Recipe.of(
        {
            "name": "streamed",
            "data": {"kind": "prepared", "path": str(folder)},
            "split": {"kind": "random", "share": 0.2},
            "model": {"dim": 4},
            "training": {"epochs": 2, "batch_size": 128},
        },
        overrides,
    )


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora of some thousands of interactions are streamed, as large ones are."""
    monkeypatch.setattr(BlockSampler, "least", 1000)
    monkeypatch.setattr(BlockSampler, "block", 8)
    monkeypatch.setattr(BlockSampler, "pairs", 1024)


def assert_same_data(one: Artefact, other: Artefact) -> None:
    assert_same(one, other)
    assert one.metrics["data"] == other.metrics["data"]
    assert one.trained is not None
    assert other.trained is not None
    assert (one.trained[1].marks == other.trained[1].marks).all()


@pytest.mark.parametrize(
    "overrides",
    [
        (),  # pilots, auto strengths, a refit
        ("task.penalty=5.0", "task.l2=0.1", "task.target=value", "split.kind=time"),
        ("task.penalty=5.0", "task.l2=0.1", "task.sparse=weight", "data.minimum_value=0.3"),
    ],
    ids=["auto", "values by time", "weights"],
)
def test_the_same_order_is_the_same_training(overrides: tuple[str, ...], tmp_path: Path) -> None:
    corpus = generated(2500)
    recipe = recipe_of(write_prepared(corpus, tmp_path / "p", 0.4), *overrides, "training.epochs=2")
    kept = corpus
    if recipe.data.minimum_value is not None:
        kept = corpus.restrict(torch.nonzero(corpus.column("value") >= 0.3).flatten())
    assert_same_data(train(recipe, kept, progress=False), train(recipe, progress=False))


@pytest.mark.parametrize("suffix", ["csv", pytest.param("parquet", marks=pytest.mark.long)])
def test_a_published_split_is_that_of_the_corpus_in_memory(suffix: str, tmp_path: Path) -> None:
    corpus = generated(2500)
    # Half are in the corpus, some are of queries and candidates that it does not know.
    ids = {"user": [*range(200, 0, -1)], "film": [i % 45 for i in range(200)]}
    test = pa.table(ids | {"value": [0.5] * 200})
    path = tmp_path / f"test.{suffix}"
    write_csv(test, path) if suffix == "csv" else write_parquet(test, path)
    named = ["data.columns.query=user", "data.columns.candidate=film"]
    given = [f"data.test={path}", *named, "split.kind=given", "split.share=0.1"]
    recipe = recipe_of(write_prepared(corpus, tmp_path / "p", 0.4), *given)
    one, other = (split_for(recipe, c, 0) for c in (corpus, load_corpus(recipe)))
    assert isinstance(other.training, MappedCorpus)
    for name in ("selection", "test"):
        pairs = [(getattr(s, name).query, getattr(s, name).candidate) for s in (one, other)]
        assert torch.equal(pairs[0][0], pairs[1][0])
        assert torch.equal(pairs[0][1], pairs[1][1])
    assert one.unknown_queries == other.unknown_queries > 0
    assert one.in_training == other.in_training > 0
    assert 0 < len(one.test) < 200
    assert_same_data(train(recipe, corpus, progress=False), train(recipe, progress=False))
    with pytest.raises(RecipeError, match=r"data\.columns is used with split.kind = 'given'"):
        recipe_of(tmp_path / "p", named[0])


@pytest.mark.usefixtures("streaming")
def test_whole_queries_are_drawn_from_memory(tmp_path: Path) -> None:
    corpus = generated(4000)
    folder = write_prepared(corpus, tmp_path / "p", 0.4)
    recipe = recipe_of(folder, "task.kind=softmax_all", "model.normalize=true")
    assert_same_data(train(recipe, corpus, progress=False), train(recipe, progress=False))


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(
    "overrides",
    [
        ("task.penalty=5.0", "task.l2=0.1", "task.target=value", "gramian.batch=independent"),
        ("model.kind=two_tower", "model.hidden=[8]", "gramian.kind=storm", "task.l2=0.1"),
    ],
    ids=["values", "two-tower"],
)
def test_a_streamed_training_is_the_same_each_time(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_prepared(generated(4000), tmp_path / "p", 0.4)
    recipe = recipe_of(folder, *overrides)
    split = split_for(recipe, load_corpus(recipe), 0)
    assert isinstance(split.training, MappedCorpus)
    sampler = build_sampler(FitSettings.of(recipe, split.training, 0), split.training)
    assert isinstance(sampler, BlockSampler)
    one, other = (train(recipe, progress=False) for _ in range(2))
    assert_same_data(one, other)


@pytest.mark.usefixtures("streaming")
def test_what_needs_all_pairs_is_drawn_in_memory_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_prepared(generated(4000), tmp_path / "p")
    recipe = recipe_of(folder, "task.sparse=exclude", "task.penalty=5.0", "task.l2=0.1")
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    settings = FitSettings.of(recipe, corpus, 0)
    assert type(build_sampler(settings, corpus)) is ExampleSampler
    monkeypatch.setattr("evergram.data.prepared.mapped_corpus.WHOLE", 2000)
    with pytest.raises(DataError, match=r"task\.sparse = 'exclude'"):
        build_sampler(settings, corpus)


@pytest.mark.parametrize("fit", ["joint", pytest.param("posthoc", marks=pytest.mark.long)])
def test_an_upgrade_on_prepared_data_is_that_in_memory(fit: str, tmp_path: Path) -> None:
    corpus = generated(2500)
    recipe = recipe_of(
        write_prepared(corpus, tmp_path / "p", 0.6),
        *("split.kind=time", "model.dim=[4, 5]", f"upgrade.fit={fit}"),
        *("task.penalty=5.0", "task.l2=0.1"),
    )
    upgraded = []
    for number, data in enumerate((corpus, None)):
        lineage = Lineage.create(tmp_path / str(number), recipe.name)
        lineage.publish(train(recipe, data, progress=False))
        upgraded.append(upgrade(recipe, lineage, data, progress=False))
    assert_same_data(*upgraded)
    # Rankings at the past version, and the certificate, among them; not how long it took.
    reports = [untimed(each.metrics, ("training",)) for each in upgraded]
    assert len(reports[0]) > 5
    assert repr(reports[0]) == repr(reports[1])


@pytest.mark.long
def test_two_processes_publish_the_lineage_of_one_from_prepared_data(tmp_path: Path) -> None:
    """They write what is derived from the prepared folder at the same moment, each for itself."""
    lineages = []
    for count in (1, 2):
        # A folder of its own, so that its derived files are written anew.
        folder = write_prepared(generated(4000), tmp_path / f"of{count}" / "p", 0.4)
        out = tmp_path / f"of{count}" / "lineage"
        arguments = "-m", "tests.support.shared_prepared", str(folder), str(out)
        outputs = ended(start(count, *arguments))
        assert [code for code, _ in outputs] == [0] * count, outputs
        assert outputs[0][1].endswith("BlockSampler\n")
        lineages.append(Lineage.open(out))
    alone, together = lineages
    for version in (0, 1):
        mine, yours = (lineage.metrics(version) for lineage in lineages)
        assert yours["metrics"]["model"] == pytest.approx(mine["metrics"]["model"], abs=1e-6)
        for side, (ids, vectors) in alone.canaries(version).items():
            others = together.canaries(version)[side]
            assert ids.equals(others[0])
            torch.testing.assert_close(others[1], vectors, rtol=1e-5, atol=1e-5)
    readings = [lineage.metrics(1)["compatibility"]["0"] for lineage in lineages]
    for name, ranking in readings[0]["ranking"].items():
        assert readings[1]["ranking"][name] == pytest.approx(ranking, abs=1e-6)
    torch.testing.assert_close(
        together.chain.matrix(1, 0), alone.chain.matrix(1, 0), rtol=1e-4, atol=1e-5
    )
