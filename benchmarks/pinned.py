"""A consumer that never changes: an OpenAI client and a scikit-learn classifier, pinned to @v0."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[1]
RECIPE = "recipes/movielens-growing.toml"
# Four versions of a corpus that grows, each a little wider.
SETTINGS = ("split.versions=[0.6, 0.7, 0.8, 0.9]", "model.dim=[64, 72, 80, 88]")
COMMAND = "from evergram.cli import main; main()"
Predict = Callable[[], npt.NDArray[np.float64]]


def command(*arguments: str) -> dict[str, Any]:
    """Run a command of ours as a user does, and return its JSON."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@contextmanager
def served(lineage: Path, *options: str) -> Iterator[str]:
    """Run `evergram serve` in a process of its own, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", str(lineage), "--port", str(port), *options],
        cwd=ROOT, env={**os.environ}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"the service stopped: {process.communicate()[1]}")
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        else:
            raise RuntimeError("the service did not start within a minute")
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=60)


def consumer(
    url: str, name: str, learn: list[int], labels: npt.NDArray[np.bool_], test: list[int]
) -> Predict:
    """Fit the other team's program on the day of version 0, and return it; it never changes.

    Returns: a function that fetches embeddings and returns the scores of the test objects.
    """
    from openai import OpenAI
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    client = OpenAI(base_url=f"{url}/v1", api_key="not needed on loopback", max_retries=0)

    def embeddings(ids: list[int]) -> npt.NDArray[np.float64]:
        vectors = []
        for start in range(0, len(ids), 500):
            part = [str(i) for i in ids[start : start + 500]]
            answer = client.embeddings.create(model=f"{name}@v0", input=part)
            vectors += [item.embedding for item in answer.data]
        return np.array(vectors)

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    model.fit(embeddings(learn), labels)
    return lambda: np.asarray(model.decision_function(embeddings(test)))


def measure(recipe: str = RECIPE, settings: tuple[str, ...] = SETTINGS) -> list[dict[str, float]]:
    """Train, serve, upgrade three times under the running service, and ask the consumer after
    each."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from evergram.data.corpus import Vocabulary
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.demo import rated_above_median
    from evergram.training.corpora import load_corpus, split_for
    from evergram.training.recipe import Recipe

    chosen = Recipe.load(ROOT / recipe, list(settings))
    known = split_for(chosen, load_corpus(chosen), 0).training
    ids, above = rated_above_median(known)
    popularity = known.counts("candidate").numpy()[known.candidates.vocabulary.rows(ids).numpy()]
    order = np.random.default_rng(0).permutation(len(ids))
    learn, test = np.split(order, [len(order) // 2])
    labels, keys = above.numpy(), ids.to_numpy()
    options = [part for setting in settings for part in ("--set", setting)]
    of_model = [s for s in settings if not s.startswith("upgrade.")]  # all that `train` reads
    first_options = [part for setting in of_model for part in ("--set", setting)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lineage = Path(folder) / "lineage"
        command("train", recipe, "--lineage", str(lineage), *first_options)
        name = Lineage.open(lineage).name
        with served(lineage) as url:
            predict = consumer(url, name, keys[learn].tolist(), labels[learn], keys[test].tolist())
            first: npt.NDArray[np.float32] | None = None
            for version in range(len(chosen.model_dump()["split"]["versions"])):
                if version:
                    command("upgrade", recipe, "--lineage", str(lineage), *options)
                    _wait_for(url, version)
                auc = roc_auc_score(labels[test], predict())
                there, stored = Lineage.open(lineage).embeddings("candidate")
                vectors = stored[Vocabulary(there).rows(ids)].numpy()
                if first is None:
                    first = vectors
                    on_first = make_pipeline(
                        StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)
                    ).fit(vectors[learn], labels[learn])
                anew = make_pipeline(
                    StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)
                ).fit(vectors[learn], labels[learn])
                raw = on_first.decision_function(vectors[test][:, : first.shape[1]])
                fresh = anew.decision_function(vectors[test])
                rows.append(
                    {
                        "version": version,
                        "consumer": float(auc),
                        "raw": float(roc_auc_score(labels[test], raw)),
                        "retrained": float(roc_auc_score(labels[test], fresh)),
                        "popularity": float(roc_auc_score(labels[test], popularity[test])),
                        "objects": len(test),
                    }
                )
    return rows


def tiny() -> list[dict[str, float]]:
    """Measure on a synthetic corpus that grows once under the service."""
    settings = (
        "data.interactions=8000", "split.versions=[0.6, 0.8]", "model.dim=[4, 6]",
        "training.epochs=2", "upgrade.alone=false",
    )  # fmt: skip
    return measure("recipes/synthetic.toml", settings)


def _wait_for(url: str, version: int) -> None:
    """Wait until the running service computes from a version, with no restart."""
    for _ in range(600):
        if httpx.get(f"{url}/readyz").json()["version"] == version:
            return
        time.sleep(0.1)
    raise RuntimeError(f"version {version} was not picked up within a minute")


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
