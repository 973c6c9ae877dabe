"""A run that is killed and resumed ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors import SafetensorError

from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler
from evergram.errors import TrainingError
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training import resume
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe


class KilledError(Exception):
    """Stands for a signal that no code can answer."""


@pytest.fixture(autouse=True)
def save_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume.ResumeFile, "due", lambda self: self.path is not None)


def kill_in_epoch(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let an epoch die after three batches from now on. Returns: the epochs begun."""
    real = ExampleSampler.epoch
    begun: list[int] = []

    def epoch(self: ExampleSampler, which: int) -> Any:
        begun.append(which)
        for i, batch in enumerate(real(self, which)):
            if which == number and i == 3:
                raise KilledError
            yield batch

    monkeypatch.setattr(ExampleSampler, "epoch", epoch)
    return begun


@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [
        "model.kind=factorization",
        "model.kind=two_tower",
        "model.kind=graphsage training.layer_rate=0.01",
        "model.kind=graphsage task.kind=bpr task.penalty=0",
        "model.kind=graphsage gramian.kind=exact training.batch_size=1000 model.layers=3",
        "model.kind=lightgcn gramian.kind=storm",
        "gramian.kind=storm gramian.rate=auto",
        "gramian.kind=storm gramian.batch=independent gramian.decay=0.2",
        "gramian.rate=auto",
        "gramian.kind=sagram gramian.memory=0",
        "gramian.kind=sagram gramian.beta=1",
        "gramian.kind=sampled gramian.batch=independent gramian.batch_size=5",
        "gramian.kind=sampled gramian.batch=independent gramian.sampler=adaptive "
        "gramian.gradient=sampled",
        "gramian.kind=sagram gramian.batch=independent gramian.sampler=adaptive "
        "gramian.batch_size=20 gramian.pool_size=50",
        "task.kind=softmax task.penalty=0",
        "task.kind=bpr task.penalty=1",
        "task.kind=second_order task.penalty=0 task.query_measure=1",
    ],
)
def test_train_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str
) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=5", *overrides.split()])
    whole = train(recipe)
    with monkeypatch.context() as patch:
        kill_in_epoch(patch, 3)
        with pytest.raises(KilledError):
            train(recipe, folder=tmp_path)
    begun = kill_in_epoch(monkeypatch, -1)
    again = train(recipe, folder=tmp_path)
    assert begun == [3, 4]
    assert whole.encoder is not None
    assert again.encoder is not None
    for name, value in whole.encoder.state.items():
        assert torch.equal(value, again.encoder.state[name]), name
    assert again.metrics["metrics"] == whole.metrics["metrics"]
    best = [m["training"]["best_epoch"] for m in (whole.metrics, again.metrics)]
    assert best[0] == best[1]


def test_patience_of_a_resumed_run_ends_where_it_would_have_ended(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while patience runs out, and again when it has run out but before the end."""
    recipe = Recipe.of(
        small.model_dump(), ["training.epochs=60", "training.patience=4", "training.table_rate=0.3"]
    )
    whole = train(recipe).metrics["training"]
    assert whole["ended"] == "patience"
    with monkeypatch.context() as patch:
        kill_in_epoch(patch, whole["best_epoch"] + 2)
        with pytest.raises(KilledError):
            train(recipe, folder=tmp_path)
    begun = kill_in_epoch(monkeypatch, -1)
    again = train(recipe, folder=tmp_path).metrics["training"]
    assert begun == [whole["best_epoch"] + 2, whole["best_epoch"] + 3]
    for key in ("best_epoch", "epochs", "ended", "warnings"):
        assert again[key] == whole[key], key
    # A run that patience ended is not resumed.
    third = train(recipe, folder=tmp_path).metrics["training"]
    assert len(begun) == 2
    assert third["epochs"] == whole["epochs"]


def test_a_refit_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=3", "training.refit=true"])
    whole = train(recipe)
    epochs = 3 + whole.metrics["training"]["best_epoch"]
    with monkeypatch.context() as patch:
        # Epochs are counted from 0 in each of the two trainings: kill in the second one's last.
        real, seen = ExampleSampler.epoch, []

        def epoch(self: ExampleSampler, which: int) -> Any:
            seen.append(which)
            for i, batch in enumerate(real(self, which)):
                if len(seen) == epochs and i == 3:
                    raise KilledError
                yield batch

        patch.setattr(ExampleSampler, "epoch", epoch)
        with pytest.raises(KilledError):
            train(recipe, folder=tmp_path)
    begun = kill_in_epoch(monkeypatch, -1)
    again = train(recipe, folder=tmp_path)
    assert begun == [epochs - 4]
    for side in ("query", "candidate"):
        assert torch.equal(whole.block(side)[1], again.block(side)[1])
    assert again.metrics["metrics"] == whole.metrics["metrics"]
    refits = [m["training"]["refit"] for m in (whole.metrics, again.metrics)]
    assert refits[0]["steps"] == refits[1]["steps"] > 0


def test_upgrade_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = load_corpus(small)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(small, corpus))
    whole = upgrade(small, lineage, corpus)
    with monkeypatch.context() as patch:
        kill_in_epoch(patch, 2)
        with pytest.raises(KilledError):
            upgrade(small, lineage, corpus, folder=lineage.work_dir)
    assert list(lineage.work_dir.iterdir())
    again = upgrade(small, lineage, corpus, folder=lineage.work_dir)
    assert whole.transform is not None
    assert again.transform is not None
    for name, value in whole.transform.state_dict().items():
        assert torch.equal(value, again.transform.state_dict()[name])
    assert torch.equal(whole.block("query")[1], again.block("query")[1])
    lineage.publish(again)
    assert not lineage.work_dir.exists()


def test_another_recipe_starts_anew(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small, folder=tmp_path)
    begun = kill_in_epoch(monkeypatch, -1)
    train(small, folder=tmp_path)
    assert begun == []
    train(Recipe.of(small.model_dump(), ["task.penalty=6.0"]), folder=tmp_path)
    assert begun == [0, 1, 2]
    (next(tmp_path.glob("*.safetensors"))).write_bytes(b"cut")
    train(small, folder=tmp_path)
    assert begun == [0, 1, 2, 0, 1, 2]


def test_a_run_is_known_by_its_recipe_version_data_and_modules() -> None:
    """Changed keys would restart half-done trainings: this one was recorded."""
    corpus = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))
    other = Corpus.from_tables(pa.table({"query": ["a", "c"], "candidate": ["x", "y"]}))
    frozen, moved = torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(2)
    keys = [
        resume.run_key("{}", 0, corpus),
        resume.run_key("{ }", 0, corpus),
        resume.run_key("{}", 1, corpus),
        resume.run_key("{}", 0, other),
        resume.run_key("{}", 0, corpus, joint=moved),
        resume.run_key("{}", 0, corpus, start=frozen),
    ]
    assert len(set(keys)) == len(keys)
    # Parameters of a joint module are trained: only its buffers say which run it is.
    assert resume.run_key("{}", 0, corpus, joint=frozen) == keys[0]
    start = f"{{}}0 {torch.__version__} {corpus.interactions.schema}".encode()
    columns = [corpus.column(name).numpy().tobytes() for name in ("query", "candidate")]
    assert keys[0] == hashlib.sha256(start + b"".join(columns) + b"a\nbx\ny").hexdigest()


def test_a_state_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = resume.ResumeFile(tmp_path / "work", "run", "key")
    state.save({"a": torch.ones(3)}, {"epoch": 1})

    def full(_: object, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("evergram.training.resume.save_file", full)
    with pytest.raises(TrainingError, match=r"20 bytes, cannot be kept in .*: I/O error: No space"):
        state.save({"a": torch.ones(5)}, {"epoch": 2})
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["run.safetensors"]
    saved = state.load()
    assert saved is not None
    assert saved[1] == {"epoch": 1}
