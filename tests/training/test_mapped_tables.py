"""Tables in files or hashed, and what memory holds: the models of plain tables, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.encoders.mapped_tensors import mapping_folder
from evergram.errors import DataError, RecipeError, ShapeError, TrainingError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train, upgrade
from evergram.training import memory
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trainer
from evergram.training.memory import (
    memory_bytes,
    needed_bytes,
    place_tables,
    refuse_too_large,
)
from evergram.training.monitors.early_stopping import EarlyStopping
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


MAPPED = "training.tables=mapped"


def same(one: Artefact, other: Artefact) -> None:
    """Assert that two artefacts have the same model, vectors and history, bit by bit."""
    assert one.encoder is not None
    assert other.encoder is not None
    assert one.encoder.state.keys() == other.encoder.state.keys()
    for name, value in one.encoder.state.items():
        assert torch.equal(value, other.encoder.state[name]), name
    for side in one.embeddings:
        (ids, vectors), (their_ids, theirs) = one.block(side), other.block(side)
        assert ids.equals(their_ids)
        assert torch.equal(vectors, theirs)
    assert one.metrics["metrics"] == other.metrics["metrics"]
    assert _history(one) == _history(other)


def _history(artefact: Artefact) -> list[dict[str, Any]]:
    history = artefact.metrics["training"]["history"]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


@pytest.mark.parametrize(
    "overrides",
    [
        "model.kind=two_tower model.residual=false model.concatenate=true training.optimizer=sgd",
        "model.normalize=true training.patience=1 training.epochs=6",
        "training.refit=true gramian.kind=sagram",
    ],
)
def test_a_mapped_training_is_that_in_memory_bit_by_bit(
    small: Recipe, tmp_path: Path, overrides: str
) -> None:
    values = small.model_dump()
    memory = Recipe.of(values, [*overrides.split(), "training.tables=memory"])
    mapped = Recipe.of(values, [*overrides.split(), MAPPED])
    same(train(memory, device="cpu"), train(mapped, folder=tmp_path))
    assert not any("mapped" in path.name for path in tmp_path.iterdir())


@pytest.mark.long
def test_several_blocks_are_the_same_too_and_their_vectors_are_mapped(tmp_path: Path) -> None:
    """More rows than are drawn, embedded, evaluated and published at once."""
    rows = torch.arange(140_000)
    columns = {"query": rows // 2, "candidate": rows % 499}
    columns = {name: pa.array(column.numpy()) for name, column in columns.items()}
    corpus = Corpus.of(pa.table(columns))
    values = {
        "data": {"kind": "python"},
        "split": {"share": 0.01},
        "model": {"dim": [3]},
        "task": {"penalty": 1.0, "l2": 0.1},
        "training": {"epochs": 2, "batch_size": 8192},
    }
    one = train(Recipe.of(values, ["training.tables=memory"]), corpus, device="cpu")
    other = train(Recipe.of(values, [MAPPED]), corpus, folder=tmp_path)
    same(one, other)
    blocks = [vectors for _, vectors in other.blocks("query")]
    assert len(blocks) > 1
    assert {mapping_folder(vectors) for vectors in blocks} == {tmp_path}
    # Published, the same ids and vectors.
    files = []
    for name, artefact in (("a", one), ("b", other)):
        lineage = Lineage.create(tmp_path / name, name)
        publish(lineage, artefact)
        ids, vectors = lineage.embeddings("query", 0)
        files.append(
            (
                ids.to_pylist(),
                vectors,
                load_file(tmp_path / name / "versions/0/encoder.safetensors"),
            )
        )
    assert files[0][0] == files[1][0]
    assert torch.equal(files[0][1], files[1][1])
    for key, value in files[0][2].items():
        assert torch.equal(value, files[1][2][key])


def test_parameters_their_state_and_the_best_epoch_are_mapped(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = Recipe.of(small.model_dump(), [MAPPED])
    split = split_for(recipe, load_corpus(recipe), 0)
    parts = prepare(FitSettings.of(recipe, split.training, 0), split.training, CPU, None, tmp_path)
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
import json, sys
from pathlib import Path
import pyarrow as pa
import torch
import evergram

values, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
rows = torch.arange(800_000)
columns = {"query": rows // 2, "candidate": rows % 1_999}
columns = {name: pa.array(column.numpy()) for name, column in columns.items()}
lineage = evergram.Lineage.create(folder / "lineage", "line")
recipe, corpus = evergram.Recipe.of(values), evergram.Corpus.of(pa.table(columns))
with lineage.training() as work:
    artefact = evergram.train(recipe, corpus, progress=False, folder=work)
evergram.publish(lineage, artefact)
"""


def peak_of(dim: int, tables: str, folder: Path) -> int:
    """Return the anonymous memory at its peak, in bytes, of a process that trains and publishes."""
    values = {
        "data": {"kind": "python"},
        "split": {"share": 0.01},
        "model": {"dim": [dim]},
        "task": {"penalty": 1.0, "l2": 0.1},
        "training": {"epochs": 2, "batch_size": 8192, "tables": tables},
    }
    folder.mkdir()
    command = [sys.executable, "-c", CODE, json.dumps(values), str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
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


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.kind=two_tower", "model.dim=16", "model.hidden=[32, 8]"],
        ["model.kind=graphsage", "model.layers=2", "model.dim=16"],
    ],
)
def test_the_least_memory_is_less_than_a_run_holds(small: Recipe, overrides: list[str]) -> None:
    """Counted from what was trained: tables and layers, and both sides' vectors and moments."""
    recipe = Recipe.of(small.model_dump(), [*overrides, "training.epochs=1"])
    artefact = train(recipe)
    assert artefact.encoder is not None
    states = [t.numel() * t.element_size() for t in artefact.encoder.state.values()]
    vectors = sum(artefact.block(side)[1].numel() * 4 for side in ("query", "candidate"))
    moments = 2 * 8 * artefact.dim**2
    corpus = split_for(recipe, load_corpus(recipe), 0).training
    # A layer has its gradient and Adam's two means beside it.
    assert 0 < needed_bytes(recipe.model, corpus, 0) <= 4 * sum(states) + 2 * vectors + moments


def test_the_dim_of_the_version_counts(small: Recipe) -> None:
    corpus = load_corpus(small)
    wide = Recipe.of(small.model_dump(), ["model.dim=[8, 10_000_000]"])
    refuse_too_large(wide.model, corpus, 0)
    with pytest.raises(RecipeError, match=r"model\.dim = 10000000 needs at least [\d,]{15,} bytes"):
        refuse_too_large(wide.model, corpus, 1)


def test_a_container_may_have_less_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = memory_bytes()
    assert whole > 2**20
    monkeypatch.setattr(memory, "CGROUPS", (tmp_path / "max", tmp_path / "none"))
    (tmp_path / "max").write_text("max\n")
    machine = memory_bytes()
    assert machine >= whole
    (tmp_path / "max").write_text("1000000\n")
    assert memory_bytes() == 1_000_000


def fit_settings(recipe: Recipe, *overrides: str) -> tuple[FitSettings, Corpus]:
    changed = Recipe.of(recipe.model_dump(), overrides)
    corpus = split_for(changed, load_corpus(changed), 0).training
    return FitSettings.of(changed, corpus, 0), corpus


def test_auto_maps_what_memory_cannot_hold_and_says_so(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings, corpus = fit_settings(small)
    needed = needed_bytes(settings.model, corpus, 0)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
    assert place_tables(settings, corpus, CPU, tmp_path) is None
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 1)
    assert place_tables(settings, corpus, CPU, tmp_path) == tmp_path
    assert f"they are mapped from files in {tmp_path}, at the speed" in caplog.text
    in_memory, _ = fit_settings(small, "training.tables=memory")
    with pytest.raises(RecipeError, match=r"needs at least [\d,]+ bytes of memory.*lower model"):
        place_tables(in_memory, corpus, CPU, tmp_path)
    # What is no row of a table must fit into memory in any case.
    monkeypatch.setattr(memory, "memory_bytes", lambda: 100)
    with pytest.raises(RecipeError, match="bytes of memory"):
        place_tables(settings, corpus, CPU, tmp_path)


def test_a_disk_without_room_is_said_before_training(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, corpus = fit_settings(small, "training.tables=mapped")
    rows = 4 * 8 * (len(corpus.queries) + len(corpus.candidates))
    usage = shutil.disk_usage(tmp_path)
    for free, folder in ((5 * rows, tmp_path), (3 * rows, None)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, f=free: usage._replace(free=f))
        place_tables(settings, corpus, CPU, folder)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, f=free: usage._replace(free=f - 1))
        with pytest.raises(TrainingError, match=rf"at least {free:,} bytes of disk, .* make room"):
            place_tables(settings, corpus, CPU, folder)


def test_tables_that_cannot_be_mapped_are_refused_with_the_reason(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, corpus = fit_settings(small, "training.tables=mapped")
    with pytest.raises(RecipeError, match=r"'mapped', and tables on cuda are in the device's mem"):
        place_tables(settings, corpus, torch.device("cuda"), tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match=r"2 processes share each batch.*tables = 'memory'"):
        place_tables(settings, corpus, CPU, tmp_path)
    # "auto" keeps them in memory then, and refuses what is too large.
    settings, corpus = fit_settings(small)
    assert place_tables(settings, corpus, CPU, tmp_path) is None
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1)
    with pytest.raises(RecipeError, match="bytes of memory"):
        place_tables(settings, corpus, CPU, tmp_path)


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


def test_it_is_published_read_back_and_upgraded(small: Recipe, tmp_path: Path) -> None:
    overrides = ["model.dim=8", "model.hash_rows=150", "model.hash_seed=4"]
    recipe = Recipe.of(small.model_dump(), [*overrides, "upgrade.start=previous"])
    lineage = Lineage.create(tmp_path / "line", "line")
    artefact = train(recipe, device="cpu")
    assert artefact.encoder is not None
    assert artefact.encoder.options["hash_rows"] == 150
    assert len(artefact.encoder.state["query.weight"]) == 150
    warnings = artefact.metrics["training"]["warnings"]
    assert sum("share one of 150 rows" in sentence for sentence in warnings) == 2
    publish(lineage, artefact)
    ids, published = artefact.block("query")
    # Through Python, the published encoder gives the published vectors, and refuses unseen ids.
    pretrained = lineage.encoder(0)
    torch.testing.assert_close(pretrained.encode(ids, "query", convert_to_numpy=False), published)
    with pytest.raises(DataError, match="no vector for 1 of 1 objects"):
        pretrained.encode([10**9], "query")
    assert upgrade(recipe, lineage).encoder is not None
    for changed, hashing in ((recipe, "seed=5"), (small, "no hash")):
        keys = ["model.hash_seed=5"] if changed is recipe else ["model.dim=8"]
        other = Recipe.of(changed.model_dump(), [*keys, "upgrade.start=previous"])
        with pytest.raises(ShapeError, match=hashing):
            upgrade(other, lineage)


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
