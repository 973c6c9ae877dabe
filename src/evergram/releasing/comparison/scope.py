"""Warn of what a comparison cannot measure, before it trains for hours."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evergram.data.split import Split
from evergram.evaluation.consumer_tasks import ConsumerTask
from evergram.lineage.version_warnings import LEAST_QUERIES


def unmeasurable(
    splits: Sequence[Split],
    tasks: Sequence[ConsumerTask],
    left_out: Sequence[str],
    *,
    seeds: int,
    reads_features: bool,
) -> list[str]:
    """Return a sentence on each measure that the data or the recipe does not allow.

    Args:
        splits: of each version.
        tasks: of consumers, those that can be scored.
        left_out: a sentence on each task that cannot.
        seeds: how many seeds are run.
        reads_features: whether the encoder embeds objects by their features, not by ids alone.
    """
    sentences = list(left_out)
    if not tasks:
        sentences.append(
            "No consumer task is left, so (2) and (1)+(2) will not be measured; with ratings (a "
            "column 'value') and three or more versions they are."
        )
    for k, split in enumerate(splits):
        queries = len(torch.unique(split.test.query))
        if queries < LEAST_QUERIES:
            sentences.append(
                f"Version {k} is tested by {queries} queries, so (1) says little of it; "
                f"{LEAST_QUERIES} or more are needed to tell methods apart."
            )
    if not reads_features:
        first, last = splits[0].training, splits[-1].training
        known = sum(
            int((old.vocabulary.rows(new.vocabulary.keys) >= 0).sum())
            for old, new in ((first.queries, last.queries), (first.candidates, last.candidates))
        )
        share = known / (len(last.queries) + len(last.candidates))
        if share < 1:
            sentences.append(
                f"Version 0's model knows ids alone: of the objects of version {len(splits) - 1}, "
                f"{1 - share:.0%} have no embedding of it, so (3) is measured on the others, and "
                "(2) may be above 0."
            )
    if seeds == 1:
        sentences.append("With one seed no deviation is measured; set compare.seeds for more.")
    return sentences
