"""`MeanOfCandidates`: queries have no table; each is the mean of the candidates that it met."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from evergram.data.corpus import Corpus, offsets_of, take_ragged
from evergram.encoders.encoder import (
    Embeddings,
    Encoder,
    OnDemand,
    Scene,
    Schema,
    embedding_table,
    look_up,
)
from evergram.encoders.graph_encoders import adjacency


class MeanOfCandidates(Encoder):
    """u_a = the mean of v_b over the distinct candidates b that a met; v_b are rows of a table.

    In the loss of a training pair (a, b), u_a is the mean of a's other candidates, because with b
    the score would include |v_b|²; it is zero for a query with one pair. The penalty and evaluation
    use the mean of all candidates. `normalize` scales the rows of the table and the means to unit
    norm.

    The means use the interactions of the corpus that the encoder is applied to. An unknown
    candidate has the zero vector and is left out of means; a query without known candidates is
    zero.

    Args:
        scale: standard deviation of the initial rows.
    Source: docs/method.md, "Queries as means". Kabbur et al. 2013 (FISM) also leave out a pair's
        candidate; their queries are sums over a second table.
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
    """The candidates that each of Q queries met; `queries` are rows of the scene, int64 [Q]."""

    def __init__(self, scene: Scene, queries: Tensor) -> None:
        graph = scene.graph
        if graph is None:
            raise ValueError("This scene has no graph; create it with the encoder's `read`.")
        # The graph's nodes are first the queries, then the candidates.
        nodes, self.offsets = take_ragged(graph.col_indices(), graph.crow_indices(), queries)
        self.candidates = nodes.long() - scene.size("query")

    def sums(self, rows: Tensor) -> Tensor:
        """Sum the candidates' rows [N, D] for each query, [Q, D]."""
        return functional.embedding_bag(
            self.candidates, rows, self.offsets, mode="sum", include_last_offset=True
        )


class _Means(OnDemand):
    """Embeddings that compute queries from their candidates."""

    encoder: MeanOfCandidates

    def rows(self, side: str, ids: Tensor) -> Tensor:
        if side == "candidate":
            return self._candidates(ids)
        queries, inverse = torch.unique(ids, return_inverse=True)
        sums, counts, _ = self._summed(queries)
        return self._means(sums, counts).index_select(0, inverse)

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        queries, inverse = torch.unique(query, return_inverse=True)
        sums, counts, rows = self._summed(queries, candidate)
        whole = self._means(sums, counts).index_select(0, inverse)
        # The pairs belong to the scene, so each sum contains the pair's candidate.
        is_known = (self.scene.ids("candidate")[candidate] >= 0).long()
        other_counts = counts.index_select(0, inverse) - is_known
        others = sums.index_select(0, inverse) - rows
        others = torch.where((other_counts > 0)[:, None], others, 0.0)  # no rounding residue
        return whole, self._means(others, other_counts)

    def _summed(
        self, queries: Tensor, candidate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum [Q, D] and the number, int64 [Q], of each query's known candidates, and
        the vectors of `candidate`, [B, D]. Each candidate is read from the table once.

        Args:
            candidate: int64 [B], or None.
        """
        met = _Met(self.scene, queries)
        ids = self.scene.ids("candidate")
        candidate = met.candidates[:0] if candidate is None else candidate
        is_used = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        is_used[met.candidates] = True
        is_used[candidate] = True
        rows = self._candidates(torch.nonzero(is_used).flatten())
        row_of = is_used.cumsum(0) - 1
        known_before = offsets_of(ids[met.candidates] >= 0)
        counts = known_before[met.offsets].diff()
        met.candidates = row_of[met.candidates]
        return met.sums(rows), counts, rows.index_select(0, row_of[candidate])

    def _candidates(self, ids: Tensor) -> Tensor:
        inputs = self.scene.inputs["candidate"]
        rows = look_up(self.encoder.candidate, inputs.ids[ids], has_all=inputs.has_all_ids)
        return self.encoder.normalized(rows)

    def _means(self, sums: Tensor, counts: Tensor) -> Tensor:
        return self.encoder.normalized(sums / counts.clamp(min=1).to(sums)[:, None])
