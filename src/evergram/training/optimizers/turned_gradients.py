"""Turn the gradients of embeddings by the preconditioner, as they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from evergram.encoders.features import SIDES
from evergram.gramian.preconditioner import preconditioner
from evergram.tasks.task import Encoded, Moments


def turn_gradients(
    encoded: Encoded,
    moments: Moments,
    penalty: Sequence[float],
    ridge: float,
    *,
    whole: bool,
    one_table: bool = False,
) -> None:
    """Multiply the gradients of embeddings by the other side's preconditioner.

    Args:
        encoded: the embeddings, before `backward`.
        moments: of both sides, one a measure.
        penalty: λ of each measure.
        ridge: ρ of the preconditioner.
        whole: whether the pairs' rows are taken from `encoded.everyone`.
        one_table: whether both sides' rows are linear in one table. Two matrices would then turn
            parts of one row's gradient apart, and the sum need not descend: the mean of both turns
            all.
    """
    other = {s: preconditioner(moments[s], penalty, ridge) for s in SIDES}
    if one_table:
        mean = (other["query"] + other["candidate"]) / 2
        other = dict.fromkeys(SIDES, mean)
    pairs: list[tuple[Tensor | None, Tensor]] = [
        (encoded.query, other["candidate"]),
        (encoded.whole_query, other["candidate"]),
        (encoded.candidate, other["query"]),
        (encoded.negative, other["query"]),
    ]
    if encoded.everyone is not None:
        query, candidate = (encoded.everyone[side].rows for side in SIDES)
        if whole:
            pairs = []
        pairs += [(query, other["candidate"]), (candidate, other["query"])]
    for rows, matrix in pairs:
        # A side that is frozen as a whole has no gradient to multiply.
        if rows is not None and rows.requires_grad:
            rows.register_hook(partial(torch.matmul, other=matrix))  # type: ignore[no-untyped-call]
