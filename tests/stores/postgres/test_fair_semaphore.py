"""Turns are in order, and nobody gives up while others get on."""

from __future__ import annotations

import threading
import time

from evergram.stores.postgres.fair_semaphore import Turns


def test_who_comes_first_is_first_and_all_get_on() -> None:
    """The last of six waits longer than anybody has patience where nobody gets on."""
    turns = Turns(1, patience=2.0)
    order: list[int] = []

    def go(number: int) -> None:
        assert turns.take()
        time.sleep(0.5)
        order.append(number)
        turns.end()

    assert turns.take()
    waiting = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for number, thread in enumerate(waiting):
        thread.start()
        while len(turns._waiting) <= number:
            time.sleep(0.001)
    turns.end()
    for thread in waiting:
        thread.join()
    assert order == list(range(6))
    assert turns.take(), "it is free again"


def test_where_nobody_gets_on_it_is_given_up() -> None:
    turns = Turns(2, patience=0.1)
    assert turns.take()
    assert turns.take()
    assert not turns.take()
    turns.end()
    assert turns.take()
    assert not turns.take()
    # Nobody who gave up is called later.
    turns.end()
    turns.end()
    assert turns.take()
    assert turns.take()
