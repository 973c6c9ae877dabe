"""A consumer that never changes: an OpenAI client and a scikit-learn classifier, pinned to @v0."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ROOT
from benchmarks.by_command import await_ready, run, served
from evergram.data.corpus import Vocabulary
from evergram.lineage.lineage import Lineage
from evergram.releasing.demo import rated_above_median
from evergram.training.build import load_corpus, split_for
from evergram.training.recipe import Recipe

RECIPE = "recipes/movielens-growing.toml"
# Four versions of a growing corpus, each with more dims than the last.
SETTINGS = ("split.versions=[0.6, 0.7, 0.8, 0.9]", "model.dim=[64, 72, 80, 88]")


def classifier() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))


def embeddings(url: str, model: str, ids: list[int]) -> npt.NDArray[np.float64]:
    """Fetch vectors as the consumer's program does."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="not needed on loopback", max_retries=0)
    vectors = []
    for start in range(0, len(ids), 500):
        part = [str(i) for i in ids[start : start + 500]]
        answer = client.embeddings.create(model=model, input=part)
        vectors += [item.embedding for item in answer.data]
    return np.array(vectors)


def measure(recipe: str = RECIPE, settings: tuple[str, ...] = SETTINGS) -> list[dict[str, float]]:
    """Train, serve, and upgrade three times while the service runs. After each version, measure the
    consumer, which was fitted to version 0."""
    chosen = Recipe.load(ROOT / recipe, list(settings))
    known = split_for(chosen, load_corpus(chosen), 0).training
    ids, above = rated_above_median(known)
    popularity = known.counts("candidate").numpy()[known.candidates.vocabulary.rows(ids).numpy()]
    order = np.random.default_rng(0).permutation(len(ids))
    learn, test = np.split(order, [len(order) // 2])
    labels, keys = above.numpy(), ids.to_numpy()
    options = [part for setting in settings for part in ("--set", setting)]
    of_model = [s for s in settings if not s.startswith("upgrade.")]  # `train` ignores [upgrade]
    first_options = [part for setting in of_model for part in ("--set", setting)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lineage = Path(folder) / "lineage"
        run("train", recipe, "--lineage", str(lineage), *first_options)
        model = f"{Lineage.open(lineage).name}@v0"
        with served(lineage) as url:
            consumer = classifier().fit(embeddings(url, model, keys[learn].tolist()), labels[learn])
            for version in range(len(chosen.model_dump()["split"]["versions"])):
                if version:
                    run("upgrade", recipe, "--lineage", str(lineage), *options)
                    await_ready(url, version)
                there, stored = Lineage.open(lineage).embeddings("candidate")
                vectors = stored[Vocabulary(there).rows(ids)].numpy()
                anew = classifier().fit(vectors[learn], labels[learn])
                if not version:
                    dim, on_first = vectors.shape[1], anew
                fetched = embeddings(url, model, keys[test].tolist())
                scores = {
                    "consumer": consumer.decision_function(fetched),
                    "raw": on_first.decision_function(vectors[test][:, :dim]),
                    "retrained": anew.decision_function(vectors[test]),
                    "popularity": popularity[test],
                }
                rows.append({"version": version, **_aucs(labels[test], scores)})
    return rows


def _aucs(labels: npt.NDArray[np.bool_], scores: dict[str, Any]) -> dict[str, float]:
    from sklearn.metrics import roc_auc_score

    return {name: float(roc_auc_score(labels, values)) for name, values in scores.items()}


def tiny() -> list[dict[str, float]]:
    """Measure on a synthetic corpus that grows once while the service runs."""
    settings = (
        "data.interactions=8000", "split.versions=[0.6, 0.8]", "model.dim=[4, 6]",
        "training.epochs=2", "upgrade.alone=false",
    )  # fmt: skip
    return measure("recipes/synthetic.toml", settings)


def table(rows: list[dict[str, float]]) -> str:
    lines = [
        "| newest version | the consumer of v0, unchanged, over the service | the same, given the "
        "newest vectors as they are | a classifier fitted anew to the newest | by popularity |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        names = ("consumer", "raw", "retrained", "popularity")
        values = " | ".join(f"{row[name]:.4f}" for name in names)
        lines.append(f"| {row['version']} | {values} |")
    return "\n".join(lines)
