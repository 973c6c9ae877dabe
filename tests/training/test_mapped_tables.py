"""Tables in files train as those in memory do, bit for bit, and are not in memory."""

from __future__ import annotations

import json
import os
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
from evergram.encoders.mapped_tensors import mapping_folder
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.publish import publish
from evergram.releasing.upgrade import train
from evergram.training.build import prepare
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trainer
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
    # A resumed run has all of them in files of its own.
    state = run.state()
    again = Trainer(
        *prepare(FitSettings.of(recipe, split.training, 0), split.training, CPU, None, tmp_path),
        callbacks=[loaded := EarlyStopping("recall@20")],
    )
    loaded.copied = again.copied
    again.load_state(state)
    restored = again.state().tensors
    assert restored.keys() == state.tensors.keys()
    for name, value in state.tensors.items():
        assert torch.equal(restored[name], value), name
        assert mapping_folder(restored[name]) == mapping_folder(value), name
        assert restored[name].data_ptr() != value.data_ptr() or not value.numel(), name


class KilledError(Exception):
    """Stands for a signal that no code can answer."""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["factorization", "two_tower"])
def test_a_table_that_moved_on_after_the_checkpoint_does_not_leak_into_the_resumed_run(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    recipe = Recipe.of(small.model_dump(), [f"model.kind={kind}", MAPPED])
    whole = train(recipe, device="cpu")
    with monkeypatch.context() as patch:
        real = Trainer._next_epoch

        def dies(self: Trainer, limit: int | None) -> float:
            objective = real(self, limit)  # all steps of the epoch have moved the tables
            if self.epoch == 2:
                raise KilledError
            return objective

        patch.setattr(Trainer, "_next_epoch", dies)
        with pytest.raises(KilledError):
            train(recipe, folder=tmp_path, checkpoints=CheckpointSettings(steps=15))
    steps = [path.name for path in tmp_path.glob("*.safetensors")]
    assert steps
    same(whole, train(recipe, folder=tmp_path, checkpoints=CheckpointSettings(steps=15)))


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
