"""Tables in files, and data on disk: the models of plain tables, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow.csv import write_csv
from tests.support.fits import CPU, assert_same, changed, killed_and_resumed, split_of, untimed
from tests.support.prepared import generated, write_prepared
from tests.support.several_processes import ROOT, assert_near, called

from evergram.data.corpus import Corpus
from evergram.data.prepared import mapped_corpus
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.sampling import ExampleSampler, SweepSampler
from evergram.data.sorted_pairs import SortedPairs
from evergram.encoders.encoder import SIDES, Encoder, Schema
from evergram.errors import DataError, RecipeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.mapped_tensors import mapping_folder
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.training import build
from evergram.training.build import (
    FitSettings,
    build_sampler,
    load_corpus,
    needed_bytes,
    place_tables,
    prepare,
    split_for,
)
from evergram.training.distributed import join_processes
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe
from evergram.training.resuming import CheckpointSettings
from evergram.training.selection import EarlyStopping

MAPPED = "training.tables=mapped"


@pytest.mark.parametrize(
    "overrides",
    [
        "model.kind=two_tower model.residual=false training.optimizer=sgd",
        "model.normalize=true training.patience=1 training.epochs=6",
        "training.refit=true gramian.kind=sagram",
    ],
)
def test_a_mapped_training_is_that_in_memory_bit_by_bit(
    small: Recipe, tmp_path: Path, overrides: str
) -> None:
    recipe = changed(small, *overrides.split(), "training.tables=memory")
    assert_same(train(recipe, device="cpu"), train(changed(recipe, MAPPED), folder=tmp_path))
    assert not any("mapped" in path.name for path in tmp_path.iterdir())


def narrow_corpus(rows: int, candidates: int) -> Corpus:
    """Pairs of half as many queries."""
    numbers = torch.arange(rows)
    columns = {"query": numbers // 2, "candidate": numbers % candidates}
    return Corpus.of(pa.table({name: column.numpy() for name, column in columns.items()}))


def narrow_recipe(dim: int, tables: str) -> Recipe:
    return Recipe.of(
        {
            "data": {"kind": "python"},
            "split": {"share": 0.01},
            "model": {"dim": [dim]},
            "task": {"penalty": 1.0, "l2": 0.1},
            "training": {"epochs": 2, "batch_size": 8192, "tables": tables},
        }
    )


def test_parameters_their_state_and_the_best_epoch_are_mapped(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = changed(small, MAPPED)
    corpus = split_of(recipe).training
    parts = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU, None, tmp_path)
    stopping = EarlyStopping("recall@20", evaluate=lambda run: float(run.epoch))
    run = Trainer(*parts, callbacks=[stopping])
    run.fit(epochs=1)
    optimizer = run.step.optimizers[0]
    sums = [state["sum"] for state in optimizer.state.values()]
    kept = dict(stopping.kept)
    assert len(kept) == len(sums) == 2
    tensors = [*run.encoder.parameters(), *sums, *kept.values()]
    assert {mapping_folder(t) for t in tensors} == {tmp_path}
    assert len({t.data_ptr() for t in tensors}) == len(tensors)
    first = {name: value.clone() for name, value in kept.items()}
    run.fit(epochs=2)
    for name, value in stopping.kept.items():
        assert value.data_ptr() == kept[name].data_ptr()  # its file is written over
        assert not torch.equal(value, first[name])


CODE = """
import sys
from pathlib import Path
import evergram
from tests.training.test_mapped_tables import narrow_corpus, narrow_recipe

recipe, folder = narrow_recipe(int(sys.argv[1]), sys.argv[2]), Path(sys.argv[3])
lineage = evergram.Lineage.create(folder / "lineage", "line")
with lineage.training() as work:
    artefact = evergram.train(recipe, narrow_corpus(800_000, 1_999), progress=False, folder=work)
evergram.publish(lineage, artefact)
"""


def peak_of(dim: int, tables: str, folder: Path) -> int:
    """Return the anonymous memory at its peak, in bytes, of a process that trains and publishes."""
    folder.mkdir()
    command = [sys.executable, "-c", CODE, str(dim), tables, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    status, peak = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        lines = [line.split() for line in status.read_text().splitlines()]
        peak = max([peak, *(1024 * int(words[1]) for words in lines if words[0] == "RssAnon:")])
        time.sleep(0.01)
    assert process.returncode == 0
    return peak


@pytest.mark.long
def test_the_memory_of_a_run_does_not_grow_with_the_numbers_of_mapped_rows(tmp_path: Path) -> None:
    """Of two runs that differ in dims alone: what they add are the rows' own numbers."""
    narrow, wide, rows = 4, 68, 400_000
    added = 4 * (wide - narrow) * rows
    grown = {}
    for tables in ("memory", "mapped"):
        peaks = [peak_of(d, tables, tmp_path / f"{tables}{d}") for d in (narrow, wide)]
        grown[tables] = (peaks[1] - peaks[0]) / added
    # In memory: the table, the best epoch's, the vectors, copies of them; in files: blocks, each a
    # sixth of all here, and what the allocator keeps, which differs from run to run.
    assert grown["memory"] > 2, grown
    assert grown["mapped"] < grown["memory"] / 2, grown


def schema_of(corpus: Corpus) -> Schema:
    return Schema.of(corpus, features=True)


@pytest.mark.parametrize(
    "overrides",
    [
        "model.kind=two_tower model.dim=16 model.hidden=[32,8]",
        "model.kind=graphsage model.layers=2 model.dim=16",
    ],
)
def test_the_least_memory_is_less_than_a_run_holds(small: Recipe, overrides: str) -> None:
    """Counted from what was trained: tables and layers, and both sides' vectors and moments."""
    recipe = changed(small, *overrides.split(), "training.epochs=1")
    artefact = train(recipe)
    assert artefact.encoder is not None
    states = [t.numel() * t.element_size() for t in artefact.encoder.state.values()]
    vectors = sum(artefact.block(side)[1].numel() * 4 for side in SIDES)
    # A layer has its gradient and Adam's two means beside it.
    most = 4 * sum(states) + 2 * vectors + 2 * 8 * artefact.dim**2
    assert 0 < needed_bytes(recipe.model, schema_of(split_of(recipe).training), 0) <= most


def test_the_dim_of_the_version_counts(small: Recipe) -> None:
    corpus = split_of(small).training
    wide = changed(small, "model.dim=[8, 10_000_000]", "training.tables=memory")
    place_tables(FitSettings.of(wide, corpus, 0), schema_of(corpus), CPU, None)
    with pytest.raises(RecipeError, match=r"model\.dim = 10000000 .*[\d,]{15,} bytes"):
        place_tables(FitSettings.of(wide, corpus, 1), schema_of(corpus), CPU, None)


def fit_settings(recipe: Recipe, *overrides: str) -> tuple[FitSettings, Corpus]:
    recipe = changed(recipe, *overrides)
    corpus = split_of(recipe).training
    return FitSettings.of(recipe, corpus, 0), corpus


def test_auto_maps_what_memory_cannot_hold_and_says_so(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, corpus = fit_settings(small)
    in_memory, _ = fit_settings(small, "training.tables=memory")
    needed = needed_bytes(settings.model, schema_of(corpus), 0)
    monkeypatch.setattr(build, "machine_memory", lambda: needed)
    assert place_tables(settings, schema_of(corpus), CPU, tmp_path) is None
    monkeypatch.setattr(build, "machine_memory", lambda: needed - 1)
    assert place_tables(settings, schema_of(corpus), CPU, tmp_path) == tmp_path
    assert str(tmp_path) in caplog.text
    # What is no row of a table must fit into memory in any case, and so must several processes'.
    for chosen, bytes_, processes in (
        (in_memory, needed - 1, 1),
        (settings, 100, 1),
        (settings, 1, 2),
    ):
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        monkeypatch.setattr(build, "machine_memory", lambda some=bytes_: some)
        with pytest.raises(RecipeError, match=r"needs at least [\d,]+ bytes of memory"):
            place_tables(chosen, schema_of(corpus), CPU, tmp_path)


def test_tables_that_cannot_be_mapped_are_refused_with_the_reason(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, corpus = fit_settings(small, "training.tables=mapped")
    with pytest.raises(RecipeError, match=r"training\.tables is 'mapped', which needs a CPU"):
        prepare(settings, corpus, torch.device("cuda"), None, tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match=r"training\.tables is 'mapped', which needs one process"):
        prepare(settings, corpus, CPU, None, tmp_path)


def tables(encoder: Encoder) -> dict[str, torch.Tensor]:
    """The id table of each side."""
    parameters = dict(encoder.named_parameters())
    is_tower = encoder.kind == "two_tower"
    return {
        s: parameters[f"tables.{s}/id.weight" if is_tower else f"{s}.weight"].data for s in SIDES
    }


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
    monkeypatch.setattr(mapped_corpus, "IN_MEMORY", 10)


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
    recipe = recipe_of(write_prepared(corpus, tmp_path / "p"), *overrides, "training.epochs=2")
    kept = corpus
    if recipe.data.model_dump()["minimum_value"] is not None:
        kept = corpus.restrict(torch.nonzero(corpus.column("value") >= 0.3).flatten())
    assert_same_data(train(recipe, kept, progress=False), train(recipe, progress=False))


def test_a_published_split_is_that_of_the_corpus_in_memory(tmp_path: Path) -> None:
    corpus = generated(2500)
    # Half are in the corpus, some are of queries and candidates that it does not know.
    ids = {"user": [*range(200, 0, -1)], "film": [i % 45 for i in range(200)]}
    test = pa.table(ids | {"value": [0.5] * 200})
    path = tmp_path / "test.csv"
    write_csv(test, path)
    named = ["data.columns.query=user", "data.columns.candidate=film"]
    given = [f"data.test={path}", *named, "split.kind=given", "split.share=0.1"]
    recipe = recipe_of(write_prepared(corpus, tmp_path / "p"), *given)
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
    with pytest.raises(RecipeError, match=r"data\.columns is .*split.kind = 'given'"):
        recipe_of(tmp_path / "p", named[0])


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(
    "overrides",
    [
        "task.penalty=5.0 task.l2=0.1 task.target=value gramian.sampler=linear",
        "model.kind=two_tower model.hidden=[8] gramian.rate=0.1 task.l2=0.1",
        "task.kind=softmax_all model.normalize=true",
    ],
)
def test_a_streamed_training_is_the_same_each_time(overrides: str, tmp_path: Path) -> None:
    corpus = generated(4000)
    recipe = recipe_of(write_prepared(corpus, tmp_path / "p"), *overrides.split())
    split = split_for(recipe, load_corpus(recipe), 0)
    assert isinstance(split.training, MappedCorpus)
    sampler = build_sampler(FitSettings.of(recipe, split.training, 0), split.training)
    # Whole queries are drawn from memory, and are those of a corpus in memory.
    whole = "softmax_all" in overrides
    assert isinstance(sampler, BlockSampler) != whole
    other = train(recipe, corpus if whole else None, progress=False)
    assert_same_data(train(recipe, progress=False), other)


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(
    "overrides",
    [
        "task.target=value task.l2_measure=examples",
        "task.sparse=weight task.query_measure=0.5 prior.kind=constant prior.value=0.2",
        "task.sparse=exclude task.l2_measure=penalty",
    ],
)
def test_streamed_sweeps_over_mapped_tables_are_those_in_memory_also_after_a_kill(
    overrides: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SortedPairs, "block", 500)
    monkeypatch.setattr(SortedPairs, "long", 80)
    corpus = generated(4000)
    values = {
        "name": "swept",
        "data": {"kind": "prepared", "path": str(write_prepared(corpus, tmp_path / "p"))},
        "split": {"kind": "random", "share": 0.2},
        "model": {"dim": 4},
        "task": {"penalty": 5.0, "l2": 0.1},
        "training": {"optimizer": "als", "epochs": 3},
    }
    recipe = Recipe.of(values, overrides.split())
    split = split_for(recipe, load_corpus(recipe), 0)
    sampler = build_sampler(FitSettings.of(recipe, split.training, 0), split.training)
    assert isinstance(sampler, SweepSampler)
    pairs = sampler.pairs["candidate"]
    assert {True, False} == {int(pairs.counts[b.rows].max()) > 80 for b in pairs.blocks}

    def run(**options: Any) -> Artefact:
        return train(Recipe.of(values, [*overrides.split(), MAPPED]), progress=False, **options)

    at, often = (1, len(sampler) - 2), CheckpointSettings(every=1)
    again, begun = killed_and_resumed(monkeypatch, run, at, tmp_path / "work", often)
    assert begun[0] == at
    assert_same_data(train(recipe, corpus, progress=False), again)


@pytest.mark.usefixtures("streaming")
def test_tables_of_a_streamed_training_are_mapped_without_a_change_of_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_prepared(generated(4000), tmp_path / "p")
    recipe = recipe_of(folder, "task.penalty=5.0", "task.l2=0.1", "task.query_measure=0.3")
    recipe = changed(recipe, "task.candidate_measure=0.7", MAPPED)
    mapped = train(recipe, progress=False, folder=tmp_path)
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    sampler = build_sampler(FitSettings.of(recipe, corpus, 0), corpus)
    for tables in (sampler.counts, sampler.rates, sampler.measures):
        assert all(mapping_folder(table) for table in tables.values())
    assert mapping_folder(sampler.query_weights)
    assert not list(tmp_path.rglob("*.mapped-tensor"))
    monkeypatch.setattr(mapped_corpus, "IN_MEMORY", 1 << 20)
    assert_same_data(mapped, train(recipe, progress=False))


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


@pytest.mark.parametrize(
    "method", ["evergram", pytest.param("post-lin-mloss", marks=pytest.mark.long)]
)
def test_an_upgrade_on_prepared_data_is_that_in_memory(method: str, tmp_path: Path) -> None:
    corpus = generated(2500)
    recipe = recipe_of(
        write_prepared(corpus, tmp_path / "p"),
        *("split.kind=time", "model.dim=[4, 5]", f"upgrade.method={method}"),
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


def publish_together(prepared: str, out: str) -> None:
    """In one of several processes, train version 0 and a joint upgrade in a lineage, from a corpus
    that is streamed; the first publishes."""
    # As large ones are.
    BlockSampler.least, BlockSampler.block, BlockSampler.pairs = 1000, 8, 1024
    strengths = "task.penalty=5.0", "task.l2=0.1", "model.dim=[4, 6]"
    recipe = recipe_of(Path(prepared), *strengths, "split.kind=time", "split.versions=[0.6, 0.8]")
    together = join_processes(CPU)
    artefact = train(recipe, progress=False)
    if together.is_first:
        publish(Lineage.create(Path(out), recipe.name), artefact)
    together.sum(torch.zeros(()), "published")
    lineage = Lineage.open(Path(out))
    artefact = upgrade(recipe, lineage, progress=False)
    if together.is_first:
        publish(lineage, artefact)
        training = split_for(recipe, load_corpus(recipe), 0).training
        assert isinstance(training, MappedCorpus)
        assert isinstance(
            build_sampler(FitSettings.of(recipe, training, 0), training), BlockSampler
        )


@pytest.mark.long
def test_two_processes_publish_the_lineage_of_one_from_prepared_data(tmp_path: Path) -> None:
    """They write what is derived from the prepared folder at the same moment, each for itself."""
    lineages = []
    for count in (1, 2):
        # A folder of its own, so that its derived files are written anew.
        folder = write_prepared(generated(4000), tmp_path / f"of{count}" / "p")
        out = tmp_path / f"of{count}" / "lineage"
        outputs = called(count, publish_together, str(folder), str(out))
        assert [code for code, _ in outputs] == [0] * count, outputs
        lineages.append(Lineage.open(out))
    assert_near(*lineages)
    readings = [lineage.metrics(1)["compatibility"]["0"] for lineage in lineages]
    for name, ranking in readings[0]["ranking"].items():
        assert readings[1]["ranking"][name] == pytest.approx(ranking, abs=1e-6)
