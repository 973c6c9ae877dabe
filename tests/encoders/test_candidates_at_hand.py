"""All candidates are embedded once and shared, in one piece or in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from evergram.encoders.candidates_at_hand import CandidatesAtHand
from evergram.encoders.encoder import Embeddings

CPU = torch.device("cpu")
IDS = torch.tensor([2, 0, 2])


class Layered(Embeddings):
    """A layer with dropout over fixed inputs; `calls` are the sizes that were embedded."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.inputs = {s: torch.randn(9, 4, generator=draw) for s in ("query", "candidate")}
        self.layer = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
        self.calls: list[int] = []

    def rows(self, side: str, ids: Tensor) -> Tensor:
        self.calls.append(len(ids))
        rows: Tensor = self.layer(self.inputs[side][ids])
        return rows

    def blocks(self, side: str, batch_size: int = 4) -> Iterator[Tensor]:
        yield self.inputs[side]


def test_candidates_are_embedded_once_and_the_other_side_as_it_is_asked() -> None:
    embeddings = Layered()
    shared = CandidatesAtHand(embeddings, 9, CPU)
    assert torch.equal(shared.rows("candidate", IDS), shared.candidates[IDS])
    assert shared.whole("candidate") is shared.candidates
    assert embeddings.calls == [9]
    assert shared.whole("query") is None
    assert shared.rows("query", IDS).shape == (3, 3)
    assert embeddings.calls == [9, 3]
    assert torch.equal(next(shared.blocks("query")), embeddings.inputs["query"])


def test_blocks_are_embedded_again_with_the_same_dropout() -> None:
    embeddings = Layered()
    shared = CandidatesAtHand(embeddings, 9, CPU, rows=4)
    assert embeddings.calls == [4, 4, 1]
    shared.candidates.sum().backward()  # type: ignore[no-untyped-call]
    assert sorted(embeddings.calls[3:]) == [1, 4, 4]
    weight = embeddings.layer[0].get_parameter("weight")
    kept = (shared.candidates.detach() != 0).to(weight) * 2  # dropout at a half doubles the rest
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, kept.T @ embeddings.inputs["candidate"])


def test_what_is_whole_already_is_taken() -> None:
    class Whole(Layered):
        def whole(self, side: str) -> Tensor | None:
            return self.inputs[side]

    embeddings = Whole()
    assert CandidatesAtHand(embeddings, 9, CPU).candidates is embeddings.inputs["candidate"]
    assert embeddings.calls == []
