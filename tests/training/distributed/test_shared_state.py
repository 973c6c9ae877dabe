"""The look ahead of all processes, where a callback wants to save; processes are threads."""

from __future__ import annotations

from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.thread_processes import Threads, in_threads

from evergram.collectives import ALONE, Collectives
from evergram.training.callbacks import Callback
from evergram.training.distributed.shared_state import whole_look_ahead


class Saving(Callback):
    def __init__(self, wants: bool) -> None:
        self.wants = wants

    def wants_state(self, run: Any) -> bool:
        return self.wants


def run_of(together: Collectives, wants_before: bool = True) -> Any:
    """Return a run whose processes share five queries and one candidate."""
    rows = {"query": torch.arange(10.0).view(5, 2), "candidate": torch.full((1, 2), 7.0)}
    ahead = {}
    for side, all_rows in rows.items():
        own = all_rows[together.share(len(all_rows))]
        ahead[side] = own if len(own) else all_rows[:1]  # one stands in
    step = SimpleNamespace(
        collectives=together,
        wants_before=wants_before,
        look_ahead=ahead,
        look_ahead_rows={side: len(r) for side, r in rows.items()},
    )
    return SimpleNamespace(step=step, look_ahead=None)


@pytest.mark.parametrize("wants", [True, False])
def test_shares_are_put_together_only_where_one_is_saved(wants: bool) -> None:
    callbacks = [Saving(wants), Saving(False)]

    def saved(process: Threads) -> Any:
        run = run_of(process)
        with whole_look_ahead(run, callbacks if process.is_first else []) as wanting:
            inside = run.look_ahead
        assert run.look_ahead is None
        return inside, list(wanting)

    results, processes = in_threads(3, saved)
    assert results[0][1] == callbacks[:wants]
    assert not results[1][1]
    for inside, _ in results:
        if wants:
            assert torch.equal(inside["query"], torch.arange(10.0).view(5, 2))
            assert torch.equal(inside["candidate"], torch.full((1, 2), 7.0))
        else:
            assert inside is None
    assert processes[0].kinds == ["counts"] + ["look ahead"] * (2 * wants)


def test_what_is_whole_is_not_exchanged() -> None:
    callbacks = [Saving(False)]
    other = Threads(0, 2, [], Barrier(2))
    for run in (run_of(ALONE), run_of(other, wants_before=False)):
        with whole_look_ahead(run, callbacks) as wanting:
            assert wanting == callbacks
            assert run.look_ahead is None
