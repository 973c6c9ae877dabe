"""Consumers of version 0 are scored on what they read, and scores are kept in files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.evaluation.consumer_tasks import ConsumerTask, Examples
from evergram.lineage.lineage import Lineage
from evergram.releasing.comparison.consumer_scores import ConsumerScores
from evergram.releasing.past_models import known_vectors
from evergram.releasing.upgrade import upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.progress import Progress
from evergram.training.recipe import CompareRecipe

CPU, QUIET = torch.device("cpu"), Progress(quiet=True)
SETTINGS = CompareRecipe(hidden=[4], dropout=[0.0], consumers=2, epochs=2)


@pytest.fixture(scope="module")
def lineages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lineage]:
    """Two lineages of the same two versions, that go by other names."""
    folder = tmp_path_factory.mktemp("scores")
    first = tiny_lineage(folder / "keep-all")
    recipe = tiny_recipe("upgrade.alone=false")
    first.publish(upgrade(recipe, first, progress=False, readings=False))
    shutil.copytree(folder / "keep-all", folder / "bc-aligner")
    return {"keep-all": first, "bc-aligner": Lineage.open(folder / "bc-aligner")}


@pytest.fixture
def training() -> list[Corpus]:
    corpus = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0).training
    return [corpus, corpus]


def activity(corpus: Corpus) -> ConsumerTask:
    """Is a candidate met more than the median?"""
    count = corpus.counts("candidate")
    label = count > count.median()
    rows = torch.arange(len(count))
    examples = {k: Examples(k, {"candidate": rows}, label) for k in (0, 1)}
    return ConsumerTask("activity", examples[0], examples[0], {1: examples[1]})


def test_keep_all_reads_version_0_itself_and_others_read_the_chain(
    lineages: dict[str, Lineage], training: list[Corpus], tmp_path: Path
) -> None:
    task = activity(training[0])
    scores = ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET)
    assert scores["keep-all"]["error"] == {0: 0.0, 1: 0.0}
    assert scores["bc-aligner"]["known"] == {0: 1.0, 1: 1.0}
    assert len(scores["bc-aligner"]["auc"]["activity"][1]) == SETTINGS.consumers
    # The error by hand: the mean distance of what is read from what version 0 has.
    lineage = lineages["bc-aligner"]
    past, _ = known_vectors(load_encoder(lineage, 0), training[1])
    new, _ = known_vectors(load_encoder(lineage, 1), training[1])
    back = torch.cat([lineage.chain.apply(new[s], 1, 0) - past[s] for s in SIDES])
    expected = float(back.double().square().sum(1).sqrt().mean())
    assert scores["bc-aligner"]["error"][1] == pytest.approx(expected, rel=1e-5)


def test_scores_and_consumers_in_files_are_not_made_again(
    lineages: dict[str, Lineage], training: list[Corpus], tmp_path: Path
) -> None:
    task = activity(training[0])
    first = ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET)
    path = tmp_path / "measured" / "bc-aligner" / "1.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "error": 7.0}))
    consumers = tmp_path / "consumers" / "activity.safetensors"
    before = consumers.read_bytes()
    again = ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET)
    assert again["bc-aligner"]["error"] == {0: 0.0, 1: 7.0}
    # One that is missing is measured by the same consumers; damaged ones are fitted again.
    path.unlink()
    for content in (before, b"cut"):
        consumers.write_bytes(content)
        path.unlink(missing_ok=True)
        assert (
            ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET) == first
        )
    assert consumers.read_bytes() == before
