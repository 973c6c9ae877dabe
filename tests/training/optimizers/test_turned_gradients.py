"""The gradients of embeddings, multiplied by the other side's preconditioner."""

from __future__ import annotations

import torch

from evergram.gramian.estimator import Moment
from evergram.gramian.preconditioner import preconditioner
from evergram.tasks.task import Encoded, Spread
from evergram.training.optimizers.turned_gradients import turn_gradients


def test_each_side_is_turned_by_the_other_once() -> None:
    rows = {s: torch.randn(4, 3).requires_grad_() for s in ("query", "candidate", "negative")}
    shown = {s: r * 1.0 for s, r in rows.items()}
    moments = {}
    for side in ("query", "candidate"):
        root = torch.randn(5, 3)
        moments[side] = [Moment(root.T @ root)]
    encoded = Encoded(shown["query"], shown["candidate"], shown["negative"])
    turn_gradients(encoded, moments, [2.0], 0.1, whole=False)
    sum(r.sum() for r in shown.values()).backward()  # type: ignore[union-attr]
    for side, other in (("query", "candidate"), ("candidate", "query"), ("negative", "query")):
        matrix = preconditioner(moments[other], [2.0], 0.1)
        torch.testing.assert_close(rows[side].grad, torch.ones(4, 3) @ matrix)


def test_rows_of_one_table_are_turned_by_one_matrix() -> None:
    """Also a pair's query without its candidate, and the same with it."""
    names = ("query", "candidate", "whole")
    rows = {name: torch.randn(4, 3).requires_grad_() for name in names}
    shown = {name: r * 1.0 for name, r in rows.items()}
    moments = {}
    for side in ("query", "candidate"):
        root = torch.randn(5, 3)
        moments[side] = [Moment(root.T @ root)]
    encoded = Encoded(shown["query"], shown["candidate"], whole_query=shown["whole"])
    turn_gradients(encoded, moments, [2.0], 0.1, whole=False, one_table=True)
    torch.autograd.backward(sum(shown.values(), torch.zeros(4, 3)).sum())
    both = [preconditioner(moments[side], [2.0], 0.1) for side in ("query", "candidate")]
    for name in names:
        torch.testing.assert_close(rows[name].grad, torch.ones(4, 3) @ (both[0] + both[1]) / 2)


def test_rows_taken_from_all_entities_are_turned_with_them_alone() -> None:
    whole = {s: torch.randn(6, 3).requires_grad_() for s in ("query", "candidate")}
    shown = {s: r * 1.0 for s, r in whole.items()}
    moments = {s: [Moment(torch.diag(torch.tensor([1.0, 2.0, 3.0])))] for s in whole}
    everyone = {s: Spread(rows, torch.ones(6, 1)) for s, rows in shown.items()}
    pairs = {s: rows[:2] for s, rows in shown.items()}
    turn_gradients(
        Encoded(pairs["query"], pairs["candidate"], everyone=everyone),
        moments,
        [1.0],
        0.1,
        whole=True,
    )
    torch.autograd.backward(pairs["query"].sum() + pairs["candidate"].sum())
    matrix = preconditioner(moments["query"], [1.0], 0.1)
    for side in whole:
        expected = torch.zeros(6, 3)
        expected[:2] = torch.ones(2, 3) @ matrix
        torch.testing.assert_close(whole[side].grad, expected)
