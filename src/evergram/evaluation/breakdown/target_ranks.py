"""The rank of every held-out pair, however far down the list it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from evergram.data.corpus import take_ragged
from evergram.errors import ShapeError
from evergram.evaluation.ranking import Relevance, parse_metric, values_of_ranks
from evergram.evaluation.score_blocks import ScoreBlocks

# Targets that are compared with a block's scores at once.
TARGETS = 64
# The rank of a target that is in no ranking: no K reaches it.
UNRANKED = 2**62


def target_ranks(query: Tensor, candidate: Tensor, relevance: Relevance) -> Tensor:
    """Return the rank of each target, int64 [T], in the order of `relevance.targets`.

    Ranks are those of `rank_metrics`: the number of unseen candidates that score at least as much,
    itself included. A target outside the catalogue has rank 0; one that is also seen, which no
    list holds, has rank `UNRANKED`.

    Args:
        query: [N_q, D]; candidate: [N, D].
    Raises: ShapeError: the dims differ.
    """
    if query.shape[-1] != candidate.shape[-1]:
        raise ShapeError(
            f"Queries have dim {query.shape[-1]} and candidates {candidate.shape[-1]}; "
            "embeddings of one version are needed on both sides."
        )
    blocks = ScoreBlocks(candidate)
    ranks = torch.zeros(len(relevance.targets), dtype=torch.int64)
    for places in torch.split(torch.arange(len(relevance)), blocks.rows):
        targets, offsets = take_ragged(relevance.targets, relevance.target_offsets, places)
        owner = torch.repeat_interleave(torch.arange(len(places)), offsets.diff())
        score = candidate.new_full((len(targets),), -torch.inf)
        for start, scores in _unseen(query, blocks, relevance, places):
            inside = (targets >= start) & (targets < start + scores.shape[1])
            score[inside] = scores[owner[inside], targets[inside] - start]
        rank = torch.zeros(len(targets), dtype=torch.int64)
        # All targets' scores are needed first, so blocks of candidates are scored again.
        for _, scores in _unseen(query, blocks, relevance, places):
            for part in torch.split(torch.arange(len(targets)), TARGETS):
                rank[part] += (scores[owner[part]] >= score[part, None]).sum(1)
        # No K reaches it: a target that was seen is not in the ranking.
        rank[score == -torch.inf] = UNRANKED
        rank[targets < 0] = 0
        first = int(relevance.target_offsets[places[0]])
        ranks[first : first + len(rank)] = rank
    return ranks


def _unseen(
    query: Tensor, blocks: ScoreBlocks, relevance: Relevance, places: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of the scores of some queries, with seen candidates at −∞."""
    seen, offsets = take_ragged(relevance.seen, relevance.seen_offsets, places)
    owner = torch.repeat_interleave(torch.arange(len(places)), offsets.diff())
    for start, scores in blocks.of(query[relevance.queries[places]]):
        inside = (seen >= start) & (seen < start + scores.shape[1])
        scores[owner[inside], seen[inside] - start] = -torch.inf
        yield start, scores


def owners(relevance: Relevance) -> Tensor:
    """Return the place of the query of each target, int64 [T]."""
    places = torch.arange(len(relevance))
    return torch.repeat_interleave(places, relevance.target_offsets.diff())


def metric_of_ranks(name: str, ranks: Tensor, relevance: Relevance) -> Tensor:
    """Return a metric of each query, float64 [Q], by the ranks of its targets."""
    inside = ranks > 0
    return values_of_ranks(
        parse_metric(name),
        ranks[inside],
        owners(relevance)[inside],
        relevance.target_offsets.diff(),
    )
