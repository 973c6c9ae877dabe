"""A run that is killed and resumed ends as if nothing had happened, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evergram.data.sampling import ExampleSampler
from evergram.data.whole_queries.whole_query_sampler import WholeQuerySampler
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe

# Before a kill at a batch, the last checkpoint may be some batches ago.
OFTEN = CheckpointSettings(steps=2)


def kill_in_epoch(monkeypatch: pytest.MonkeyPatch, number: int) -> list[tuple[int, int]]:
    """Let an epoch die after seven batches from now on. Returns: the epochs begun, and where."""
    begun: list[tuple[int, int]] = []

    def dying(real: Any) -> Any:
        def epoch(self: ExampleSampler, which: int, start: int = 0) -> Any:
            begun.append((which, start))
            for i, batch in enumerate(real(self, which, start), start):
                if which == number and i == 7:
                    raise KeyboardInterrupt
                yield batch

        return epoch

    for kind in (ExampleSampler, WholeQuerySampler):
        monkeypatch.setattr(kind, "epoch", dying(kind.epoch))
    return begun


@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [
        "model.kind=factorization training.tables=mapped",
        "model.kind=two_tower training.tables=mapped",
        "model.kind=graphsage training.layer_rate=0.01",
        "model.kind=graphsage task.kind=bpr task.penalty=0",
        "model.kind=graphsage gramian.kind=exact training.batch_size=400 model.layers=3",
        "model.kind=lightgcn gramian.kind=storm",
        "model.kind=mean_of_candidates",
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
        "task.kind=softmax_all task.penalty=0 task.l2=0 training.optimizer=adam training.decay=0.8 "
        "training.table_rate=0.02 task.query_power=0.5",
        "task.kind=softmax_all task.penalty=1 model.kind=two_tower",
        "task.kind=softmax_all task.penalty=0 task.l2=0 task.temperature=learned "
        "model.normalize=true training.layer_rate=0.05",
        "task.kind=softmax_clustered task.clusters=8",
        "task.kind=softmax_clustered task.clusters=8 task.cluster_rate=auto",
    ],
)
def test_train_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: str
) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=5", *overrides.split()])
    whole = train(recipe)
    with monkeypatch.context() as patch:
        kill_in_epoch(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder=tmp_path, checkpoints=OFTEN)
    begun = kill_in_epoch(monkeypatch, -1)
    torch.rand(17)
    again = train(recipe, folder=tmp_path, checkpoints=OFTEN)
    (first, start), *rest = begun
    assert (first, rest) == (3, [(4, 0)])
    assert start > 0
    assert whole.encoder is not None
    assert again.encoder is not None
    for name, value in whole.encoder.state.items():
        assert torch.equal(value, again.encoder.state[name]), name
    assert again.metrics["metrics"] == whole.metrics["metrics"]
    assert objectives(again) == objectives(whole)


def objectives(artefact: Artefact) -> list[dict[str, float]]:
    """Return an artefact's history, without its times."""
    history = artefact.metrics["training"]["history"]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


def test_a_refit_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=3", "training.refit=true"])
    whole = train(recipe)
    epochs = 3 + whole.metrics["training"]["best_epoch"]
    with monkeypatch.context() as patch:
        # Epochs are counted from 0 in each of the two trainings: kill in the second one's last.
        real, seen = ExampleSampler.epoch, []

        def epoch(self: ExampleSampler, which: int, start: int = 0) -> Any:
            seen.append(which)
            for i, batch in enumerate(real(self, which, start), start):
                if len(seen) == epochs and i == 3:
                    raise KeyboardInterrupt
                yield batch

        patch.setattr(ExampleSampler, "epoch", epoch)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder=tmp_path, checkpoints=CheckpointSettings(steps=1))
    begun = kill_in_epoch(monkeypatch, -1)
    again = train(recipe, folder=tmp_path)
    # The look ahead may have been drawn for the next step.
    assert begun == [(epochs - 4, 3)]
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
        with pytest.raises(KeyboardInterrupt):
            upgrade(small, lineage, corpus, folder=lineage.work_dir, checkpoints=OFTEN)
    assert list(lineage.work_dir.iterdir())
    again = upgrade(small, lineage, corpus, folder=lineage.work_dir)
    assert whole.transform is not None
    assert again.transform is not None
    for name, value in whole.transform.state_dict().items():
        assert torch.equal(value, again.transform.state_dict()[name])
    assert torch.equal(whole.block("query")[1], again.block("query")[1])
    lineage.publish(again)
    assert not lineage.work_dir.exists()


def test_another_recipe_a_damaged_file_or_never_starts_anew(
    small: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(small, folder=tmp_path)
    begun = kill_in_epoch(monkeypatch, -1)
    train(small, folder=tmp_path)
    assert begun == []
    train(Recipe.of(small.model_dump(), ["task.penalty=6.0"]), folder=tmp_path)
    anew = [(0, 0), (1, 0), (2, 0)]
    assert begun == anew
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"cut")
    train(small, folder=tmp_path)
    assert begun == 2 * anew
    train(small, folder=tmp_path, checkpoints=CheckpointSettings(resume="never"))
    assert begun == 3 * anew
    for named in ("task.penalty changed", f"{path.name} is damaged", "--resume never"):
        assert named in caplog.text


def test_a_cache_on_disk_that_moved_on_does_not_leak_into_the_resumed_run(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.of(small.model_dump(), ["gramian.kind=sagram", "gramian.memory=0"])
    whole = train(recipe)
    with monkeypatch.context() as patch:
        kill_in_epoch(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder=tmp_path, checkpoints=CheckpointSettings(steps=3))
    caches = sorted(tmp_path.glob("cache-*.bin"))
    assert len(caches) == 2
    for cache in caches:  # as if it had been written after the checkpoint
        cache.write_bytes(b"\x7f" * cache.stat().st_size)
    again = train(recipe, folder=tmp_path)
    for side in ("query", "candidate"):
        assert torch.equal(whole.block(side)[1], again.block(side)[1])
