"""Queries without a table: each is the mean of the candidates that it met."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import (
    ROWS,
    Embeddings,
    Encoder,
    Scene,
    Schema,
    embedding_table,
    look_up,
)
from evergram.encoders.graph_encoders import adjacency


class MeanOfCandidates(Encoder):
    """u_a = the mean of v_b over the candidates b that a met, each once; v_b are rows of a table.

    The loss of a training pair (a, b) sees the mean of a's other candidates: with its own in it, a
    pair would be high by |v_b|² alone. A query of one pair has the zero vector there. All else, the
    penalty and every evaluation, sees the mean of all. With `normalize` rows of the table are
    scaled to unit norm, and so are their means.

    The interactions are those of the corpus that it is applied to. A candidate that it was not
    trained on has the zero vector and is in no mean; a query without a known one has zero.

    Args:
        scale: standard deviation of the initial rows.
        generator: draws them.
    Source: docs/method.md, "Queries as means". Kabbur et al. 2013 (FISM) leave out a pair's own
        candidate, too; their queries are sums over a second table.
    """

    kind = "mean_of_candidates"
    one_table = True

    def __init__(
        self,
        schema: Schema,
        dim: int,
        *,
        generator: torch.Generator,
        scale: float = 0.1,
        normalize: bool = False,
    ) -> None:
        super().__init__(schema, dim, normalize)
        self.candidate: nn.Embedding = embedding_table(
            len(schema.ids("candidate")), dim, scale, generator
        )

    def keyed(self) -> dict[str, str]:
        return {"candidate.weight": self.schema.inputs["candidate"]["id"]}

    def read(self, corpus: Corpus) -> Scene:
        return Scene(super().read(corpus).inputs, adjacency(corpus))

    def forward(self, scene: Scene) -> Embeddings:
        return _Means(self, scene)

    def known(self, side: str, scene: Scene) -> Tensor:
        known = scene.ids("candidate") >= 0
        if side == "candidate":
            return known
        met = _Met(scene, torch.arange(scene.size("query"), device=known.device))
        return met.sums(known[:, None].float())[:, 0] > 0


class _Met:
    """The candidates that each of Q queries met.

    Args:
        queries: int64 [Q], rows of the scene.
    """

    def __init__(self, scene: Scene, queries: Tensor) -> None:
        graph = scene.graph
        if graph is None:
            raise ValueError("This scene has no graph; make it with `read` of the encoder.")
        # Queries come first among a graph's nodes, and candidates after them.
        offsets, nodes = graph.crow_indices(), graph.col_indices()
        first = offsets.index_select(0, queries).long()
        counts = offsets.index_select(0, queries + 1).long() - first
        self.offsets = functional.pad(counts.cumsum(0), (1, 0))
        start = torch.repeat_interleave(first - self.offsets[:-1], counts)
        places = torch.arange(len(start), device=start.device) + start
        self.candidates = nodes.index_select(0, places).long() - scene.size("query")

    def sums(self, rows: Tensor) -> Tensor:
        """Return the sum of each query's candidates, [Q, D] of [N, D]."""
        return functional.embedding_bag(
            self.candidates, rows, self.offsets, mode="sum", include_last_offset=True
        )


class _Means(Embeddings):
    """Embeddings of which a query's are computed from its candidates, when they are asked for."""

    def __init__(self, encoder: MeanOfCandidates, scene: Scene) -> None:
        self.encoder = encoder
        self.scene = scene

    def rows(self, side: str, ids: Tensor) -> Tensor:
        if side == "candidate":
            return self._candidates(ids)
        queries, place = torch.unique(ids, return_inverse=True)
        sums, counts, _ = self._summed(queries)
        return self._means(sums, counts).index_select(0, place)

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        queries, place = torch.unique(query, return_inverse=True)
        sums, counts, own = self._summed(queries, candidate)
        whole = self._means(sums, counts).index_select(0, place)
        # A pair's candidate is one of its query's: a pair is of the scene.
        known = (self.scene.ids("candidate")[candidate] >= 0).long()
        left = counts.index_select(0, place) - known
        others = sums.index_select(0, place) - own
        others = torch.where((left > 0)[:, None], others, 0.0)  # without what rounding leaves
        return whole, self._means(others, left)

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        device = self.scene.ids(side).device
        for ids in torch.split(torch.arange(self.scene.size(side), device=device), batch_size):
            with self.encoder.evaluating():
                block = self.rows(side, ids)
            yield block

    def _summed(
        self, queries: Tensor, candidate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum and the number of each query's known candidates, [Q, D] and int64 [Q], and
        the rows of `candidate`, [B, D]. Each candidate is read from the table once.

        Args:
            candidate: int64 [B]; None is none.
        """
        met = _Met(self.scene, queries)
        ids = self.scene.ids("candidate")
        asked = met.candidates[:0] if candidate is None else candidate
        is_read = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        is_read[met.candidates] = True
        is_read[asked] = True
        read = torch.nonzero(is_read).flatten()
        place = is_read.cumsum(0) - 1
        rows = self._candidates(read)
        known = functional.pad((ids[met.candidates] >= 0).cumsum(0), (1, 0))
        counts = known[met.offsets].diff()
        met.candidates = place[met.candidates]
        return met.sums(rows), counts, rows.index_select(0, place[asked])

    def _candidates(self, ids: Tensor) -> Tensor:
        inputs = self.scene.inputs["candidate"]
        rows = look_up(self.encoder.candidate, inputs.ids[ids], has_all=inputs.has_all_ids)
        return self.encoder.normalized(rows)

    def _means(self, sums: Tensor, counts: Tensor) -> Tensor:
        return self.encoder.normalized(sums / counts.clamp(min=1).to(sums)[:, None])
